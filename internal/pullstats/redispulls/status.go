package redispulls

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

// Status says how far the pulls in Redis are flushed, and in what state the server is.
type Status struct {
	Address   string // without user and password
	Reachable bool
	Memory    int64 // bytes in use
	MaxMemory int64 // bytes, 0: without a limit
	// Problems are the reasons why pulls aren't counted or may be lost, each with its
	// remedy.
	Problems []string
	// State is the state of flushing: IDLE, PROCESSING or ERROR. Error is the reason for
	// ERROR.
	State, Error string
	// Processed is when the last complete flush began; zero if there was none.
	Processed time.Time
	// Behind is the time since Processed: pulls in Redis that aren't in the statistics yet
	// were made after Processed.
	Behind time.Duration
	Keys   int64 // number of keys ever flushed
}

// Status reads the state of flushing from the database, and asks the Redis server for the
// server's state. If the server can't be reached, Status returns no error, but says so in
// Status.Problems.
func (w *FlushWorker) Status(ctx context.Context) (s Status, err error) {
	var message *string
	var micros int64
	err = w.opt.Stats.Pool.QueryRow(ctx, `
		SELECT last_processed_timestamp, processing_status, error_message, keys_processed_count,
			(EXTRACT(EPOCH FROM now() - last_processed_timestamp) * 1000000)::bigint
		FROM redisprocessingstate`).Scan(&s.Processed, &s.State, &message, &s.Keys, &micros)
	if err != nil {
		return s, fmt.Errorf("reading how pulls in Redis are flushed: %w", err)
	}
	s.Behind = time.Duration(max(0, micros)) * time.Microsecond
	if s.Processed.Unix() <= 0 {
		s.Processed = time.Time{}
	}
	if message != nil {
		s.Error = *message
		s.Problems = append(s.Problems, "the last flush failed: "+s.Error)
	}
	s.Address = w.opt.Redis.Address()
	if err := w.opt.Redis.look(ctx, &s); err != nil {
		s.Problems = append(s.Problems, err.Error()+": pulls wait, and then are counted from the audit log")
	}
	return s, nil
}

// Behind returns how long ago the last complete flush began, like Status.Behind.
func (w *FlushWorker) Behind(ctx context.Context) (time.Duration, error) {
	var micros int64
	err := w.opt.Stats.Pool.QueryRow(ctx,
		"SELECT (EXTRACT(EPOCH FROM now() - last_processed_timestamp) * 1000000)::bigint FROM redisprocessingstate").Scan(&micros)
	if err != nil {
		return 0, fmt.Errorf("reading how pulls in Redis are flushed: %w", err)
	}
	return time.Duration(max(0, micros)) * time.Microsecond, nil
}

// observe sets the metrics from the status. If the database doesn't tell how far the pulls are
// flushed, Redis is asked all the same, and the lag grows from when it was last known.
func (w *FlushWorker) observe(ctx context.Context) {
	if ctx.Err() != nil { // the process stops
		return
	}
	s, err := w.Status(ctx)
	if err == nil {
		w.opt.Metrics.looked(s)
		w.opt.Metrics.flushLag(statsdb.LagKnown(s.Behind))
		return
	}
	w.opt.Logger.WarnContext(ctx, "looking at Redis", "error", err)
	s = Status{}
	if err := w.opt.Redis.look(ctx, &s); err != nil {
		w.opt.Logger.WarnContext(ctx, "looking at Redis", "error", err)
	}
	w.opt.Metrics.looked(s)
	w.opt.Metrics.flushLag(statsdb.LagUnknown())
}

// look asks all Redis servers for their memory and settings and adds these to s.
func (r *Client) look(ctx context.Context, s *Status) error {
	ctx, cancel := context.WithTimeout(ctx, r.opt.ReadTimeout)
	defer cancel()
	err := r.eachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		info, err := c.InfoMap(ctx, "memory", "persistence").Result()
		if err != nil {
			return fmt.Errorf("reaching Redis at %s: %w", c.Options().Addr, err)
		}
		s.add(info["Memory"], info["Persistence"])
		return nil
	})
	s.Reachable = err == nil
	return err
}

// add adds what one Redis server reports: its memory, and problems with its settings.
func (s *Status) add(memory, persistence map[string]string) {
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(memory[name], 10, 64) // 0 if the server doesn't report it
		return n
	}
	s.Memory += number("used_memory")
	s.MaxMemory += number("maxmemory")
	if policy := memory["maxmemory_policy"]; number("maxmemory") > 0 && policy != "" && policy != "noeviction" {
		s.problem("maxmemory-policy of Redis is " + policy + ", which deletes pulls that aren't counted when memory is short: set it to noeviction")
	}
	if persistence["aof_enabled"] == "0" {
		s.problem("Redis writes no append-only file, so it loses what isn't counted when it restarts: set appendonly to yes")
	}
	if number("maxmemory") > 0 && number("used_memory") > number("maxmemory")/10*9 {
		s.problem("Redis has less than a tenth of its memory left")
	}
}

// problem adds a problem that isn't listed yet.
func (s *Status) problem(text string) {
	if !strings.Contains(strings.Join(s.Problems, "\n"), text) {
		s.Problems = append(s.Problems, text)
	}
}
