package limit

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
)

// ErrFull says that there is no waiting place in a Queue.
var ErrFull = errors.New("too many wait for their turn already")

// Caller says who logs in, for the shares of a Queue.
type Caller struct {
	// Account is the name that a log-in is for, whether or not there is such an account.
	Account string
	// Address is the client's address, and Known says that the account has logged in from there
	// lately.
	Address string
	Known   bool
}

type callerKey struct{}

// Share names whose share an account uses: its own or, since a namespace may have thousands of robots
// ("NAMESPACE+NAME"), that of all robots of the namespace together ("NAMESPACE+").
func Share(account string) string {
	if namespace, _, robot := strings.Cut(account, "+"); robot {
		return namespace + "+"
	}
	return account
}

// ShareOwner returns who has a share that Share names, for messages: "the account NAME" or "the robots
// of NAMESPACE".
func ShareOwner(share string) string {
	if namespace, robots := strings.CutSuffix(share, "+"); robots {
		return "the robots of " + namespace
	}
	return "the account " + share
}

// WithCaller returns a context for Queue.Enter that says who calls. Calls without it are the
// process's own: they come first and have no share.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// unknownTurns is of how many turns one goes to unknown callers, while callers of both kinds wait.
const unknownTurns = 4

// Queue gives turns to callers: `free` of them at once. At most `size` callers wait.
//
// A flood of log-ins must not keep others from logging in. Known callers come before unknown
// ones, which get each fourth turn at least. Of callers of the same kind, those come first that
// have fewer others of their group before them. The group of known callers is the account at
// the address; that of unknown ones the address. A group has `share` waiting places at most, and so
// have the unknown callers for one account. In a full queue, a caller of a smaller group, or a
// known one, takes the place of the newest unknown one of the largest group.
type Queue struct {
	size, share int

	mu    sync.Mutex
	free  int
	list  []*queued // in the order in which they came
	turns int       // that queueds got
}

type queued struct {
	Caller
	rank int        // how many of its group waited when it came
	turn chan error // gets nil when it is the caller's turn, and ErrFull if it lost its place
}

// NewQueue makes a queue that gives `turns` at once.
func NewQueue(turns, size int) *Queue {
	return &Queue{free: turns, size: size, share: max(1, size/4)}
}

// Idle says whether nobody has a turn or waits, if the queue gives `turns` at once.
func (q *Queue) Idle(turns int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.free == turns && len(q.list) == 0
}

// Waiting returns how many log-ins like c wait.
func (q *Queue) Waiting(c Caller) (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, w := range q.list {
		if w.Caller == c {
			n++
		}
	}
	return n
}

// known says whether a caller belongs to those that come first.
func (c Caller) known() bool { return c.Known || c == Caller{} }

// group is what a caller shares waiting places with. The process's own calls have none.
func (c Caller) group() Caller {
	if !c.Known {
		c.Account = ""
	}
	return c
}

// EnterObserved is Enter. It calls began when the caller has to wait, and the result when that is over.
func (q *Queue) EnterObserved(ctx context.Context, began func() (ended func())) error {
	c, _ := ctx.Value(callerKey{}).(Caller)
	q.mu.Lock()
	if q.free > 0 {
		q.free--
		q.mu.Unlock()
		return nil
	}
	w := q.admit(c)
	q.mu.Unlock()
	if w == nil {
		return ErrFull
	}
	defer began()()
	select {
	case err := <-w.turn:
		return err
	case <-ctx.Done():
	}
	q.mu.Lock()
	i := slices.Index(q.list, w)
	if i >= 0 {
		q.list = slices.Delete(q.list, i, i+1)
	}
	q.mu.Unlock()
	if i < 0 && <-w.turn == nil { // it was the caller's turn at the same moment
		q.Leave()
	}
	return ctx.Err()
}

// Enter waits until it is the turn of the caller that the context names (see WithCaller). It returns
// ErrFull if there is no place, and the context's error if that ends first. Otherwise the caller
// must call Leave.
func (q *Queue) Enter(ctx context.Context) error {
	return q.EnterObserved(ctx, func() func() { return func() {} })
}

// Leave ends a caller's turn, and gives it to the next one.
func (q *Queue) Leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) == 0 {
		q.free++
		return
	}
	q.turns++
	i := q.next(q.turns%unknownTurns != 0)
	q.list[i].turn <- nil
	q.list = slices.Delete(q.list, i, i+1)
}

// next returns the index of the queued whose turn it is, of the known ones or the unknown ones if
// there is one. The caller holds mu.
func (q *Queue) next(known bool) int {
	best := 0
	for i, w := range q.list {
		b := q.list[best]
		if right := w.known() == known; right != (b.known() == known) {
			if right {
				best = i
			}
		} else if w.rank < b.rank {
			best = i
		}
	}
	return best
}

// admit gives a caller a waiting place, or returns nil if there is none. The caller holds mu.
func (q *Queue) admit(c Caller) *queued {
	sizes, same := map[Caller]int{}, 0 // of groups
	for _, w := range q.list {
		if w.Caller != (Caller{}) {
			sizes[w.group()]++
		}
		if c.Account != "" && !c.Known && !w.Known && w.Account == c.Account {
			same++
		}
	}
	own := sizes[c.group()]
	if own >= q.share || same >= q.share {
		return nil
	}
	if len(q.list) >= q.size && !q.displace(c, own, sizes) {
		return nil
	}
	w := &queued{Caller: c, rank: own, turn: make(chan error, 1)}
	q.list = append(q.list, w)
	return w
}

// displace takes the place of the queued that has to make room for the caller c, of whose group
// `own` wait. It returns false if there is none. The caller holds mu.
func (q *Queue) displace(c Caller, own int, sizes map[Caller]int) bool {
	last, most := -1, 0
	for i, w := range q.list {
		// A known caller displaces any unknown one, others only those of larger groups.
		n := sizes[w.group()]
		if w.known() && !c.known() || w.known() == c.known() && n <= own+1 {
			continue
		}
		if !w.known() && c.known() {
			n += q.size // before known ones
		}
		if n >= most {
			last, most = i, n
		}
	}
	if last < 0 {
		return false
	}
	q.list[last].turn <- ErrFull
	q.list = slices.Delete(q.list, last, last+1)
	return true
}
