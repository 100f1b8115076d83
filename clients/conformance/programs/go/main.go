// The conformance program over the Go package: see ../../README.md.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	pinpoint "repository.invalid/pg_pinpoint/clients/go"
)

// options reads PINPOINT_OPTIONS, in which times are in seconds.
func options() (list []pinpoint.Option) {
	var raw map[string]any
	if text := os.Getenv("PINPOINT_OPTIONS"); text != "" {
		if err := json.Unmarshal([]byte(text), &raw); err != nil {
			fail(err)
		}
	}
	for name, value := range raw {
		number, _ := value.(float64)
		duration := time.Duration(number * float64(time.Second))
		switch name {
		case "max_backoff":
			list = append(list, pinpoint.WithBackoff(min(100*time.Millisecond, duration), duration))
		case "check_interval":
			list = append(list, pinpoint.WithCheckInterval(duration))
		case "probe_timeout":
			list = append(list, pinpoint.WithProbeTimeout(duration))
		case "timeout":
			list = append(list, pinpoint.WithTimeout(duration))
		case "query_timeout":
			list = append(list, pinpoint.WithQueryTimeout(duration))
		case "buffer":
			list = append(list, pinpoint.WithBuffer(int(number)))
		case "mode":
			list = append(list, pinpoint.WithMode(pinpoint.Mode(fmt.Sprint(value))))
		default:
			fail(fmt.Errorf("there is no option %s", name))
		}
	}
	return list
}

func show(fields map[string]any) {
	text, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
}

func showError(err error) {
	fields := map[string]any{"event": "error", "message": err.Error()}
	var pgError *pgconn.PgError
	if errors.As(err, &pgError) {
		fields["sqlstate"] = pgError.Code
	}
	show(fields)
}

func showDisconnected(event pinpoint.Disconnected) {
	show(map[string]any{"event": "disconnected", "reason": event.Error(), "retry_in": event.RetryIn.Seconds()})
}

func fail(err error) {
	showError(err)
	os.Exit(1)
}

// hidden is a parameter that prints as any other.
type hidden string

func (hidden) GoString() string { return "hidden" }

// rowsOf waits for rows of a live query.
func rowsOf(ctx context.Context, live *pinpoint.Live) [][]any {
	for {
		result, err := live.Next(ctx)
		if err != nil {
			fail(err)
		}
		if result.Err == nil {
			return result.Rows
		}
	}
}

// comeAndGo opens and closes consumers of live queries; then another one gets rows, and two with
// other parameters.
func comeAndGo(ctx context.Context, client *pinpoint.Client, query string) {
	one := func(number int, wait bool) {
		live, err := client.Live(fmt.Sprintf("%s -- %d", query, number%10))
		if err != nil {
			fail(err)
		}
		defer live.Close()
		if wait {
			rowsOf(ctx, live)
		}
	}
	var running sync.WaitGroup
	for number := range 200 {
		running.Add(1)
		go func() {
			defer running.Done()
			one(number, number%3 == 0)
		}()
	}
	running.Wait()
	one(0, true)
	show(map[string]any{"event": "came_and_went"})
	var lives []*pinpoint.Live
	for _, value := range []hidden{"1", "2"} {
		live, err := client.Live("SELECT $1::text", value)
		if err != nil {
			fail(err)
		}
		defer live.Close()
		lives = append(lives, live)
	}
	var rows []any
	for _, live := range lives {
		rows = append(rows, rowsOf(ctx, live))
	}
	show(map[string]any{"event": "parameters", "rows": rows})
}

func main() {
	ctx := context.Background()
	client, err := pinpoint.New(ctx, os.Getenv("PINPOINT_DSN"), options()...)
	if err != nil {
		fail(err)
	}
	defer client.Close()
	if os.Args[1] == "live" {
		live, err := client.Live(os.Args[2])
		if err != nil {
			fail(err)
		}
		go func() {
			var opened []*pinpoint.Live
			for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
				switch lines.Text()[0] {
				case '!':
					client.Close()
				case '>':
					other, err := client.Live(lines.Text()[1:])
					if err != nil {
						fail(err)
					}
					opened = append(opened, other)
				case '<':
					for _, other := range opened {
						other.Close()
					}
				default:
					comeAndGo(ctx, client, os.Args[2])
				}
			}
			live.Close()
		}()
		for result, err := range live.All(ctx) {
			var disconnected pinpoint.Disconnected
			switch {
			case err != nil:
				fail(err)
			case errors.As(result.Err, &disconnected):
				showDisconnected(disconnected)
			case result.Err != nil:
				showError(result.Err)
			default:
				show(map[string]any{"event": "rows", "rows": result.Rows, "columns": result.Columns})
			}
		}
		return
	}

	subscription, err := client.Subscribe(os.Args[2:]...)
	if err != nil {
		fail(err)
	}
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			if channel := lines.Text()[1:]; lines.Text() == "!" {
				client.Close()
			} else if lines.Text()[0] == '+' {
				if err := subscription.Add(channel); err != nil {
					fail(err)
				}
			} else {
				subscription.Remove(channel)
			}
		}
		subscription.Close()
	}()
	for event, err := range subscription.All(ctx) {
		if err != nil {
			fail(err)
		}
		switch event := event.(type) {
		case pinpoint.Connected:
			show(map[string]any{"event": "connected", "mode": event.Mode, "standby": event.Standby, "server_version": event.ServerVersion})
		case pinpoint.Changed:
			show(map[string]any{"event": "changed", "channels": event.Channels})
		case pinpoint.Notification:
			show(map[string]any{"event": "notification", "channel": event.Channel, "payload": event.Payload, "pid": event.PID})
		case pinpoint.Disconnected:
			showDisconnected(event)
		}
	}
}
