package model

import "math/bits"

// The bounds of a model. They keep a state a flat value that is copied, compared
// and hashed at once; a scenario that needs more panics when it is built.
const (
	maxRows  = 56
	maxProcs = 6
	maxSets  = 12
	maxSlots = 6
	maxKeys  = 8
	// generations is how often a digest may be put again after its manifest was
	// deleted; each time its row has another identity.
	generations = 3
)

// set is a set of small numbers: manifests, blobs, links, tags.
type set uint32

func one(i int) set          { return 1 << i }
func (s set) has(i int) bool { return s>>i&1 == 1 }
func (s set) lowest() int    { return bits.TrailingZeros32(uint32(s)) }
func (s set) size() int      { return bits.OnesCount32(uint32(s)) }

func (s set) each(f func(i int)) {
	for ; s != 0; s &= s - 1 {
		f(s.lowest())
	}
}

// The strengths of a row lock, as PostgreSQL has them.
const (
	unlocked    uint8 = iota
	keyShare          // FOR KEY SHARE, and what a foreign key takes on its target
	noKeyUpdate       // UPDATE, and DO UPDATE, of columns that are no key
	forUpdate         // FOR UPDATE, DELETE, and an INSERT's hold on its key
)

func conflict(a, b uint8) bool {
	switch {
	case a == unlocked || b == unlocked:
		return false
	case a == keyShare:
		return b == forUpdate
	case b == keyShare:
		return a == forUpdate
	}
	return true
}

// proc is where one process is: its place in its program and its transaction.
type proc struct {
	pc      uint8
	status  uint8
	begun   uint8 // a transaction is open
	aged    uint8 // the short delay has passed since its now()
	reading uint8 // the statement at pc has begun and has its snapshot in seen
	blocked uint8 // whose end it waits for; a bit per process
	_       [2]uint8
	gone    uint64       // rows that were deleted since its snapshot
	sets    [maxSets]set // what its variables hold
	wrote   [maxRows]uint8
	locked  [maxRows]uint8
	seen    [maxRows]uint8
}

// The status of a process.
const (
	running uint8 = iota
	finished
	crashed
)

// state is everything at one moment. rows is what has committed; a value of 0
// is a row that isn't there.
type state struct {
	rows    [maxRows]uint8
	objects [maxKeys]uint8 // the store: who wrote the object, counted from 1
	content [maxKeys]uint8 // what was committed under the key, likewise
	serial  [maxSlots]uint8
	over    uint8 // the longest request is over
	_       uint8
	told    set // links whose blob a client was told exists, the delay not being over
	toldOf  set // manifests, likewise
	procs   [maxProcs]proc
}

// exec is one process taking one step.
type exec struct {
	m      *machine
	s      *state
	p      int
	me     *proc
	choice int // which of choices is taken
	// choices is how many ways the step has; it is explored with each.
	choices int
	note    string // for the trace
	problem string
}

// newest is the row as a statement that waits for nobody and reads what is
// newest finds it: the own transaction's writes, else what has committed.
func (x *exec) newest(row int) uint8 {
	if w := x.me.wrote[row]; w != 0 {
		return w - 1
	}
	return x.s.rows[row]
}

// see is the row as the statement's snapshot shows it.
func (x *exec) see(row int) uint8 {
	if w := x.me.wrote[row]; w != 0 {
		return w - 1
	}
	if x.me.reading != 0 {
		return x.me.seen[row]
	}
	return x.s.rows[row]
}

// write sets a row that the transaction holds.
func (x *exec) write(row int, value uint8) {
	if x.me.locked[row] < noKeyUpdate {
		panic("model: " + x.m.rowName(row) + " is written without a lock")
	}
	x.me.wrote[row] = value + 1
}

// free says whether the lock could be had without waiting.
func (x *exec) free(row int, strength uint8) bool { return x.inTheWay(row, strength) == 0 }

func (x *exec) inTheWay(row int, strength uint8) (who uint8) {
	for q := range x.m.programs {
		if q != x.p && conflict(strength, x.s.procs[q].locked[row]) {
			who |= 1 << q
		}
	}
	return who
}

// lock takes a lock on the key of a row, whether the row is there or not. False:
// others are in the way, and the step has to wait.
func (x *exec) lock(row int, strength uint8) bool {
	if x.me.locked[row] >= strength {
		return true
	}
	if who := x.inTheWay(row, strength); who != 0 {
		x.me.blocked |= who
		return false
	}
	x.me.locked[row] = strength
	return true
}

// find is SELECT … FOR …, and what UPDATE and DELETE do to find a row: a row of
// the snapshot is locked and then looked at as it is now. A version that was
// deleted meanwhile isn't there, whatever has been inserted since.
func (x *exec) find(row int, strength uint8) (there, ok bool) {
	if x.see(row) == 0 || x.me.gone>>row&1 == 1 {
		return false, true
	}
	if !x.lock(row, strength) {
		return false, false
	}
	return x.newest(row) != 0, true
}

// insert is INSERT … ON CONFLICT DO NOTHING: it waits for whoever is inserting or
// deleting the row, but not for who only locks it.
func (x *exec) insert(row int, value uint8) (inserted, ok bool) {
	if x.me.wrote[row] > 1 {
		return true, true // by this statement, before it waited
	}
	if x.newest(row) == 0 {
		if !x.lock(row, forUpdate) {
			return false, false
		}
		x.write(row, value)
		return true, true
	}
	for q := range x.m.programs {
		if q != x.p && x.s.procs[q].wrote[row] == 1 { // is deleting it
			x.me.blocked |= 1 << q
		}
	}
	return false, x.me.blocked == 0
}

// upsert is INSERT … ON CONFLICT DO UPDATE: it changes the row as it is when it
// has it, or inserts it.
func (x *exec) upsert(row int, change func(old uint8) uint8) (old uint8, ok bool) {
	strength := noKeyUpdate
	if x.newest(row) == 0 {
		strength = forUpdate
	}
	if !x.lock(row, strength) {
		return 0, false
	}
	old = x.newest(row)
	x.write(row, change(old))
	return old, true
}

// refer is the check of a foreign key: it keeps the target alive, or the
// statement fails.
func (x *exec) refer(row int) (there, ok bool) {
	if x.newest(row) == 0 {
		return false, true
	}
	if !x.lock(row, keyShare) {
		return false, false
	}
	return x.newest(row) != 0, true
}

// commit makes what the transaction wrote visible and lets go of its locks.
func (x *exec) commit() {
	for row, w := range x.me.wrote[:x.m.rows] {
		if w == 0 {
			continue
		}
		if w == 1 && x.s.rows[row] != 0 {
			for q := range x.m.programs {
				if x.s.procs[q].reading != 0 {
					x.s.procs[q].gone |= 1 << row
				}
			}
		}
		x.s.rows[row] = w - 1
	}
	for slot := range x.m.manifests {
		if w := x.me.wrote[x.m.manifest(slot)]; w > 1 {
			x.s.serial[slot] = w - 1
		}
	}
	x.end()
}

// end lets go of what the transaction holds: the rest of commit, all of rollback.
func (x *exec) end() {
	x.me.begun, x.me.aged, x.me.reading, x.me.blocked, x.me.gone = 0, 0, 0, 0, 0
	x.me.wrote, x.me.locked, x.me.seen = [maxRows]uint8{}, [maxRows]uint8{}, [maxRows]uint8{}
	for q := range x.m.programs {
		x.s.procs[q].blocked &^= 1 << x.p
	}
}

func (x *exec) rollback() { x.end() }
