// Limits of Tollgate from go-redis.
//
//	go run . PORT PROTOCOL [TOKEN]
//
// Prints one line of JSON for each step.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Throttled is the reply of CL.THROTTLE, without the capacity and the time of the reset.
type Throttled struct {
	Limited    bool  `json:"limited"`
	Remaining  int64 `json:"remaining"`
	RetryAfter int64 `json:"retry_after"` // seconds; -1 if it was not limited
}

// Checked is the reply of TOLLGATE.CHECK; rule and remaining are nil where no limit applies.
type Checked struct {
	Limited   bool `json:"limited"`
	Rule      any  `json:"rule"`
	Remaining any  `json:"remaining"`
	Retry     bool `json:"retry"`
}

var ctx = context.Background()

func show(step string, value any) {
	json.NewEncoder(os.Stdout).Encode(map[string]any{"step": step, "value": value})
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

// Two at once, then one every half hour.
func throttle(client *redis.Client, key string) Throttled {
	reply := must(client.Do(ctx, "CL.THROTTLE", key, 1, 2, 3600).Int64Slice())
	return Throttled{Limited: reply[0] == 1, Remaining: reply[2], RetryAfter: reply[3]}
}

func check(client *redis.Client, attributes ...any) Checked {
	reply := must(client.Do(ctx, append([]any{"TOLLGATE.CHECK"}, attributes...)...).Slice())
	retryAfterMs := reply[4].(int64) // -1 if it was not limited
	return Checked{Limited: reply[0] == int64(1), Rule: reply[1], Remaining: reply[3], Retry: retryAfterMs > 0}
}

func main() {
	port, protocol, token := os.Args[1], must(strconv.Atoi(os.Args[2])), ""
	if len(os.Args) > 3 {
		token = os.Args[3]
	}
	client := redis.NewClient(&redis.Options{
		Addr:             "127.0.0.1:" + port,
		Protocol:         protocol,
		Password:         token,
		DisableIndentity: true, // CLIENT SETINFO at each connection
	})
	defer client.Close()

	show("ping", must(client.Ping(ctx).Result()) == "PONG")
	upload := func() Throttled { return throttle(client, "upload:42") }
	show("throttle", []Throttled{upload(), upload(), upload()})
	login := []any{"method", "POST", "path", "/login", "user", "42"}
	show("check", []Checked{check(client, login...), check(client, login...)})

	// Commands of a pipeline are decided together.
	pipeline := client.Pipeline()
	var replies []*redis.Cmd
	for _, quantity := range []int{2, 1, 0} {
		replies = append(replies, pipeline.Do(ctx, "CL.THROTTLE", "batch", 9, 10, 3600, quantity))
	}
	must(pipeline.Exec(ctx))
	var batch [][]int64
	for _, reply := range replies {
		batch = append(batch, must(reply.Int64Slice())[:3])
	}
	show("pipeline", batch)

	if err := client.Do(ctx, "CL.THROTTLE", "upload:42", "many", 2, 3600).Err(); err != nil {
		show("error", strings.TrimPrefix(err.Error(), "ERR "))
	}
	show("delete", must(client.Del(ctx, "upload:42", "batch", "none").Result()))
	show("throttle", []Throttled{upload()})
	show("reset", must(client.Do(ctx, "RESET").Text()))
}
