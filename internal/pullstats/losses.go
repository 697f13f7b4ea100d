package pullstats

import (
	"context"
	"sync"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

// losses tells of pulls that a process has dropped which logs pulls and doesn't count them. Others
// count these pulls from the log, so the statistics lack the dropped ones: recorded_since moves. Such a
// process has no row in pullrecorders. So if it is killed, nobody learns that the pulls are missing
// which it had in memory.
type losses struct {
	log   *audit.Recorder
	stats *db.DB
	loop  *worker.Loop

	mu   sync.Mutex
	told uint64 // how many dropped pulls were told of
}

func newLosses(o RecorderOptions) *losses {
	l := &losses{log: o.Log, stats: o.Stats}
	l.loop = worker.New(worker.Options{
		Name: "pulls that weren't logged", BackoffMax: 5 * time.Second, Log: o.Logger, Metrics: o.Worker,
		Batch: func(ctx context.Context) (bool, error) { return false, l.tell(ctx, false) },
	})
	return l
}

// wake lets Run tell at once.
func (l *losses) wake() {
	if l != nil {
		l.loop.Wake()
	}
}

// tell moves recorded_since if pulls were dropped since the last call, or if `lost` is set.
func (l *losses) tell(ctx context.Context, lost bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.log.Dropped()
	if n == l.told && !lost {
		return nil
	}
	if err := lostPulls(ctx, l.stats); err != nil {
		return err
	}
	l.told = n
	return nil
}
