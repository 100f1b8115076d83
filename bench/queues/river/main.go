// River, as an application uses it: N clients that work, each with a pool of its own
// as in N processes, and one that inserts jobs. ../run says what to do on standard
// input; see there.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

type Steady struct {
	Due time.Duration `json:"due"` // since begin
}

func (Steady) Kind() string { return "steady" }

type Flood struct{}

func (Flood) Kind() string { return "flood" }

type Hold struct{}

func (Hold) Kind() string { return "hold" }

var (
	begin    = time.Now()
	mutex    sync.Mutex
	started  []float64 // for each job, how long it took to start, in milliseconds
	done     atomic.Int64
	held     atomic.Int64
	released = make(chan struct{})
)

// What the workers do.
func addWorkers(workers *river.Workers) {
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[Steady]) error {
		mutex.Lock()
		defer mutex.Unlock()
		started = append(started, float64(time.Since(begin)-job.Args.Due)/1e6)
		return nil
	}))
	river.AddWorker(workers, river.WorkFunc(func(context.Context, *river.Job[Flood]) error {
		done.Add(1)
		return nil
	}))
	river.AddWorker(workers, river.WorkFunc(func(context.Context, *river.Job[Hold]) error {
		held.Add(1)
		<-released
		return nil
	}))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(text string) float64 {
	result, err := strconv.ParseFloat(text, 64)
	must(err)
	return result
}

// What it needs to connect is in the environment.
func pool(size int32) *pgxpool.Pool {
	config, err := pgxpool.ParseConfig("")
	must(err)
	config.MaxConns = size
	result, err := pgxpool.NewWithConfig(context.Background(), config)
	must(err)
	return result
}

func numberStarted() int {
	mutex.Lock()
	defer mutex.Unlock()
	return len(started)
}

// The steady phase: a job every so often. What counts is when it was due, so that a
// delay of the one who inserts is not left out.
func steady(client *river.Client[pgx.Tx], rate, seconds float64) map[string]any {
	jobs := int(rate*seconds + 0.5)
	start := time.Now()
	var inserts sync.WaitGroup
	started = nil
	for i := range jobs {
		due := start.Add(time.Duration(float64(i) / rate * 1e9))
		time.Sleep(time.Until(due))
		inserts.Go(func() {
			_, err := client.Insert(context.Background(), Steady{due.Sub(begin)}, nil)
			must(err)
		})
	}
	inserts.Wait()
	deadline := time.Now().Add(10 * time.Second)
	for numberStarted() < jobs && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	mutex.Lock()
	defer mutex.Unlock()
	return map[string]any{"jobs": jobs, "latency_msec": started, "seconds": time.Since(start).Seconds()}
}

// Keep this many workers busy, until the flood.
func hold(client *river.Client[pgx.Tx], workers int) map[string]any {
	for range workers {
		_, err := client.Insert(context.Background(), Hold{}, nil)
		must(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for int(held.Load()) < workers && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	return map[string]any{"held": held.Load()}
}

// The flood: four that insert jobs one after another, as fast as they are let.
func flood(client *river.Client[pgx.Tx], seconds float64) map[string]any {
	start := time.Now()
	stop := start.Add(time.Duration(seconds * 1e9))
	var enqueued atomic.Int64
	var inserts sync.WaitGroup
	close(released)
	done.Store(0)
	for range 4 {
		inserts.Go(func() {
			for time.Now().Before(stop) {
				_, err := client.Insert(context.Background(), Flood{}, nil)
				must(err)
				enqueued.Add(1)
			}
		})
	}
	inserts.Wait()
	return map[string]any{"enqueued": enqueued.Load(), "done": done.Load(), "seconds": time.Since(start).Seconds()}
}

func main() {
	defaults := flag.Bool("defaults", false, "fetch as often as River does unless told otherwise")
	flag.Parse()
	ctx := context.Background()
	inserting := riverpgxv5.New(pool(8))
	migrator, err := rivermigrate.New(inserting, nil)
	must(err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	must(err)

	workers := river.NewWorkers()
	addWorkers(workers)
	config := river.Config{
		Logger:  slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Workers: workers,
	}
	if !*defaults {
		config.FetchCooldown = time.Millisecond
		config.FetchPollInterval = time.Minute
	}
	inserter, err := river.NewClient(inserting, &config)
	must(err)
	for range int(number(flag.Arg(0))) {
		working := config
		working.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1}}
		client, err := river.NewClient(riverpgxv5.New(pool(3)), &working)
		must(err)
		must(client.Start(ctx))
	}

	fmt.Println("ready")
	output := json.NewEncoder(os.Stdout)
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		words := strings.Fields(input.Text())
		switch words[0] {
		case "hold":
			must(output.Encode(hold(inserter, int(number(words[1])))))
		case "steady":
			must(output.Encode(steady(inserter, number(words[1]), number(words[2]))))
		case "flood":
			must(output.Encode(flood(inserter, number(words[1]))))
		}
	}
}
