// Asks Tollgate's decision API, with a deadline. Without an answer the caller fails open or closed.
//
//	echo '{"user":"42"}' | go run caller.go open 100 http://127.0.0.1:8080 http://10.0.0.2:8080
//
// Reads a request from each line of stdin, and writes a verdict for each. Arguments: open or closed, the deadline in
// milliseconds, and the nodes, nearest first. Only what Go ships is used (1.19 or later).
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	maxRequest = 256 << 10 // bytes; Tollgate reads no more
	maxAnswer  = 1 << 20
	rest       = time.Second // a node is left alone for so long after it has failed
)

// Verdict is what to do with a request.
type Verdict struct {
	Allowed      bool   `json:"allowed"`
	Decided      bool   `json:"decided"` // by Tollgate; otherwise this is how the caller fails
	Status       int    `json:"status"`  // for the client: 200, 400, 403, 413, 429 or 503
	Reason       string `json:"reason"`
	RetryAfterMs *int64 `json:"retry_after_ms"`
	DelayMs      int64  `json:"delay_ms"` // wait so long before going on
}

// Caller asks nodes, nearest first. It may be shared by goroutines.
type Caller struct {
	nodes    []*node
	deadline time.Duration
	failOpen bool
	client   http.Client
}

type node struct {
	url        string
	restsUntil atomic.Int64 // Unix nanoseconds
}

// NewCaller takes the addresses of nodes, how long a call may take, and how it fails.
func NewCaller(nodes []string, deadline time.Duration, failOpen bool) *Caller {
	caller := &Caller{deadline: deadline, failOpen: failOpen}
	for _, url := range nodes {
		caller.nodes = append(caller.nodes, &node{url: url + "/v1/check"})
	}
	// A proxy from the environment is not for this, and two idle connections, the default, are few.
	caller.client.Transport = &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 20 * time.Second}
	return caller
}

// Check asks whether a request may pass. The answer comes within the deadline.
func (caller *Caller) Check(ctx context.Context, request any) Verdict {
	why := errors.New("every node failed less than a second ago")
	body, err := json.Marshal(request)
	if err != nil {
		return rejected(http.StatusBadRequest, err.Error())
	}
	if len(body) > maxRequest {
		return rejected(http.StatusRequestEntityTooLarge, "the request is too long")
	}
	ctx, cancel := context.WithTimeout(ctx, caller.deadline)
	defer cancel()
	for _, node := range caller.nodes {
		if time.Now().UnixNano() < node.restsUntil.Load() {
			continue
		}
		verdict, err := caller.ask(ctx, node, body)
		if err == nil {
			return verdict
		}
		why = err
		if !errors.As(err, &noVerdict{}) {
			node.restsUntil.Store(time.Now().Add(rest).UnixNano())
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			break // the next node may be asked only if nothing was sent
		}
	}
	return caller.fail(why)
}

func (caller *Caller) fail(why error) Verdict {
	status := http.StatusServiceUnavailable
	if caller.failOpen {
		status = http.StatusOK
	}
	return Verdict{Allowed: caller.failOpen, Status: status, Reason: why.Error()}
}

func rejected(status int, why string) Verdict {
	return Verdict{Decided: true, Status: status, Reason: why}
}

func (caller *Caller) ask(ctx context.Context, node *node, body []byte) (Verdict, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, node.url, bytes.NewReader(body))
	if err != nil {
		return Verdict{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	// Lets the transport send it again where the node had closed a connection that was kept. Nothing is sent for it.
	request.Header["Idempotency-Key"] = nil
	response, err := caller.client.Do(request)
	if err != nil {
		return Verdict{}, err
	}
	defer response.Body.Close()
	// Read to its end, or the connection is not used again.
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return Verdict{}, err
	}
	return verdict(response.StatusCode, answer)
}

func verdict(status int, answer []byte) (Verdict, error) {
	var told struct {
		Allowed *bool `json:"allowed"`
		Detail  string
		Verdict
	}
	if json.Unmarshal(answer, &told) == nil {
		switch status {
		case 200, 403, 429, 503: // allowed, banned, over the limit, a rule that fails closed
			if told.Allowed != nil {
				told.Verdict.Allowed, told.Decided, told.Status = *told.Allowed, true, status
				return told.Verdict, nil
			}
		case 400, 413: // a value that is invalid or too long: never a reason to fail open
			if told.Detail != "" {
				return rejected(status, told.Detail), nil
			}
		}
	}
	return Verdict{}, noVerdict{status, answer}
}

// An answer, but not one of Tollgate's, such as a load balancer's own 503.
type noVerdict struct {
	status int
	answer []byte
}

func (no noVerdict) Error() string {
	return fmt.Sprintf("status %d without a verdict: %.200q", no.status, no.answer)
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: caller open|closed DEADLINE_MS NODE...")
		os.Exit(2)
	}
	deadline, err := strconv.Atoi(os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	caller := NewCaller(os.Args[3:], time.Duration(deadline)*time.Millisecond, os.Args[1] == "open")
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		verdict := caller.Check(context.Background(), json.RawMessage(lines.Bytes()))
		json.NewEncoder(os.Stdout).Encode(verdict)
	}
}
