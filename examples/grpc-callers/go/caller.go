// Asks Tollgate over gRPC, with a deadline. Without an answer the caller fails open or closed.
//
//	echo '{"user":"42"}' | go run . open 100 127.0.0.1:8081 10.0.0.2:8081
//
// Reads the attributes of a request from each line of stdin, and writes a verdict for each. Arguments: open or closed,
// the deadline in milliseconds, and the nodes, nearest first. TOLLGATE_TOKEN is sent if it is set.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"

	descriptors "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// Verdict is what to do with a request.
type Verdict struct {
	Allowed bool              `json:"allowed"`
	Decided bool              `json:"decided"` // by Tollgate; otherwise this is how the caller fails
	Status  int               `json:"status"`  // for the client: 200, 429 or 503
	Reason  string            `json:"reason"`
	Headers map[string]string `json:"headers"` // for the client: RateLimit, Retry-After, Tollgate-Ticket
}

// Caller may be shared by goroutines.
type Caller struct {
	service  ratelimit.RateLimitServiceClient
	domain   string
	deadline time.Duration
	failOpen bool
	token    string
}

// NewCaller takes the addresses of nodes, nearest first, how long a call may take, and how it fails.
func NewCaller(nodes []string, deadline time.Duration, failOpen bool, token string) (*Caller, error) {
	// One channel: gRPC uses the first node that accepts, and the next one if it is lost.
	addresses := manual.NewBuilderWithScheme("nodes")
	var state resolver.State
	for _, node := range nodes {
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: node}}})
		state.Addresses = append(state.Addresses, resolver.Address{Addr: node})
	}
	addresses.InitialState(state)
	pause := backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}
	channel, err := grpc.NewClient("nodes:///tollgate",
		grpc.WithResolvers(addresses),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// MaxDelay is 120 s by default, during which no node is asked.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pause, MinConnectTimeout: time.Second}),
		// A frozen node is given up, and the next one is asked.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: time.Second}),
		grpc.WithNoProxy(),
	)
	if err != nil {
		return nil, err
	}
	service := ratelimit.NewRateLimitServiceClient(channel)
	return &Caller{service: service, domain: "shop", deadline: deadline, failOpen: failOpen, token: token}, nil
}

// Check asks whether a request may pass. The answer comes within the deadline.
func (caller *Caller) Check(ctx context.Context, attributes map[string]string) Verdict {
	ctx, cancel := context.WithTimeout(ctx, caller.deadline)
	defer cancel()
	if caller.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+caller.token)
	}
	descriptor := &descriptors.RateLimitDescriptor{}
	for key, value := range attributes {
		entry := &descriptors.RateLimitDescriptor_Entry{Key: key, Value: value}
		descriptor.Entries = append(descriptor.Entries, entry)
	}
	answer, err := caller.service.ShouldRateLimit(ctx, &ratelimit.RateLimitRequest{
		Domain:      caller.domain,
		Descriptors: []*descriptors.RateLimitDescriptor{descriptor},
	})
	if err != nil {
		return caller.fail(err)
	}
	verdict := Verdict{Allowed: true, Decided: true, Status: http.StatusOK, Reason: "ok", Headers: map[string]string{}}
	for _, header := range answer.GetResponseHeadersToAdd() {
		verdict.Headers[header.GetKey()] = header.GetValue()
	}
	if answer.GetOverallCode() == ratelimit.RateLimitResponse_OVER_LIMIT {
		verdict.Allowed, verdict.Status, verdict.Reason = false, http.StatusTooManyRequests, "over the limit"
	}
	return verdict
}

func (caller *Caller) fail(why error) Verdict {
	status := http.StatusServiceUnavailable
	if caller.failOpen {
		status = http.StatusOK
	}
	return Verdict{Allowed: caller.failOpen, Status: status, Reason: why.Error(), Headers: map[string]string{}}
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
	failOpen := os.Args[1] == "open"
	caller, err := NewCaller(os.Args[3:], time.Duration(deadline)*time.Millisecond, failOpen, os.Getenv("TOLLGATE_TOKEN"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var attributes map[string]string
		if err := json.Unmarshal(lines.Bytes(), &attributes); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		json.NewEncoder(os.Stdout).Encode(caller.Check(context.Background(), attributes))
	}
}
