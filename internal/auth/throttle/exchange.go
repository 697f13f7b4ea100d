package throttle

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/worker"
)

const (
	// exchangeEvery is the pause between two exchanges while there are requests. The loop
	// lengthens it by up to a tenth.
	exchangeEvery = time.Second
	// exchangeKeys is how many keys one statement exchanges at most, and exchangeTimeout limits
	// the duration of an exchange.
	exchangeKeys    = 1000
	exchangeTimeout = 10 * time.Second
)

func (r *Rates) newLoop() *worker.Loop {
	name := "client-request-rates"
	if r.opt.Of == OfAccounts {
		name = "account-request-rates"
	}
	return worker.New(worker.Options{
		Name: name, Timeout: exchangeTimeout, BackoffMax: exchangeTimeout, Log: r.opt.Log, Metrics: r.opt.Metrics,
		Batch: func(ctx context.Context) (bool, error) { return false, r.Exchange(ctx) },
		Next:  r.next,
	})
}

// Run exchanges requests with the other replicas until ctx ends. If the limit isn't shared, or
// if there is no limit, Run does nothing until then. Without requests it doesn't wake.
func (r *Rates) Run(ctx context.Context) error {
	if r == nil || r.loop == nil {
		<-ctx.Done()
		return nil
	}
	return r.loop.Run(ctx)
}

// admitted counts a request that is to be exchanged. The caller holds mu.
func (r *Rates) admitted(key string) {
	if r.loop == nil {
		return
	}
	if _, ok := r.pending[key]; !ok && len(r.pending) >= r.opt.Keys {
		return
	}
	r.pending[key]++
	if r.resting {
		r.resting = false
		r.loop.Wake()
	}
}

// next returns the time until the next exchange. After an exchange without requests, the loop
// sleeps until a request wakes it.
func (r *Rates) next(context.Context) (time.Duration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.resting = r.quiet && len(r.pending) == 0; r.resting {
		return worker.MaxIdle, nil
	}
	return exchangeEvery, nil
}

// Exchange adds the requests that this process has admitted since the last exchange to the
// counts of all replicas, and reads these counts for the same keys. If an error occurs, the
// requests wait for the next exchange.
func (r *Rates) Exchange(ctx context.Context) error {
	r.mu.Lock()
	admitted := r.pending
	r.pending, r.quiet = map[string]int{}, len(admitted) == 0
	r.mu.Unlock()
	for len(admitted) > 0 {
		some := make(map[string]int, min(len(admitted), exchangeKeys))
		for key, n := range admitted {
			if some[key] = n; len(some) == exchangeKeys {
				break
			}
		}
		levels, err := r.share(ctx, some)
		if err != nil {
			r.keep(admitted)
			return err
		}
		r.settle(levels)
		for key := range some {
			delete(admitted, key)
		}
	}
	return nil
}

// shareByDatabase adds numbers of admitted requests to those of all replicas, and returns the
// levels of the keys' buckets. It also deletes rows whose buckets are empty: twice as many as
// it may have inserted, so that the table stays small. The rows are inserted and locked in the
// order of their primary keys, and the deletion skips locked rows, so replicas can't deadlock.
func (r *Rates) shareByDatabase(ctx context.Context, admitted map[string]int) (map[string]float64, error) {
	keys := make(map[[subjectSize]byte]string, len(admitted))
	subjects, seconds := make([][]byte, 0, len(admitted)), make([]float64, 0, len(admitted))
	for key, n := range admitted {
		s := subject(byte(r.opt.Of), key)
		keys[[subjectSize]byte(s)] = key
		subjects, seconds = append(subjects, s), append(seconds, float64(n)/r.opt.PerSecond)
	}
	levels := make(map[string]float64, len(admitted))
	b := new(pgx.Batch)
	b.Queue(`
		INSERT INTO requestrates AS r (subject, empty_at)
		SELECT subject, now() + make_interval(secs => seconds)
		FROM unnest($1::bytea[], $2::double precision[]) u (subject, seconds)
		ORDER BY subject
		ON CONFLICT (subject) DO UPDATE SET empty_at = GREATEST(r.empty_at, now()) + (excluded.empty_at - now())
		RETURNING subject, extract(epoch FROM empty_at - now())::double precision`,
		subjects, seconds).Query(func(rows pgx.Rows) error {
		var s []byte
		var full float64
		_, err := pgx.ForEachRow(rows, []any{&s, &full}, func() error {
			levels[keys[[subjectSize]byte(s)]] = full * r.opt.PerSecond
			return nil
		})
		return err
	})
	b.Queue(`
		DELETE FROM requestrates WHERE subject = ANY (ARRAY(
			SELECT subject FROM requestrates WHERE empty_at < now()
			ORDER BY empty_at LIMIT $1 FOR UPDATE SKIP LOCKED))`, 2*len(admitted))
	if err := r.opt.DB.Pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("exchanging requests with other replicas: %w", err)
	}
	return levels, nil
}

// settle sets the buckets to the levels that all replicas have caused together, and adds the
// requests that this process has admitted meanwhile.
func (r *Rates) settle(levels map[string]float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opt.Now()
	for key, level := range levels {
		if e, ok := r.keys[key]; ok {
			b := e.Value.(*bucket)
			b.level, b.at = level+float64(r.pending[key]), now
		}
	}
}

// keep lets requests that couldn't be exchanged wait for the next exchange. Of each key it keeps
// a burst at most: during a long outage this process has held the key to its rate, and requests
// of long ago must not be held against the key afterwards.
func (r *Rates) keep(admitted map[string]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, n := range admitted {
		if _, ok := r.pending[key]; ok || len(r.pending) < r.opt.Keys {
			r.pending[key] = min(r.pending[key]+n, r.opt.Burst)
		}
	}
}
