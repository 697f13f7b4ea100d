package model

// result is what became of a step.
type result uint8

const (
	next   result = iota // the step is over, and another process may be next
	skip                 // there was nothing to do; the next step follows at once
	more                 // a row is done; others may act before the statement's next row
	wait                 // somebody holds what the step needs
	jumped               // the step set pc
	idle                 // there is nothing to do now; the process stays where it is
	ended                // the program is over
	failed               // the transaction is to be rolled back: see program.rerun
)

// When a statement's snapshot counts.
type look uint8

const (
	newest  look = iota // it reads no snapshot, or does nothing but read
	scans               // it finds rows in a snapshot and may have to wait for them
	earlier             // its snapshot is taken in a step of its own: others act before it goes on
)

// step is one SQL statement, or the part of one up to where it may wait, or one
// call of the blob store.
type step struct {
	name  string
	look  look
	store bool // no SQL
	do    func(x *exec) result
}

// program is what a process does.
type program struct {
	name   string
	worker bool   // it gives way: lock_timeout, or an error, ends its transaction at any point
	after  string // where a worker that gave way goes on, when it was waiting
	rerun  string // where a transaction begins again that lost a race
	steps  []step
	labels map[string]uint8
}

func newProgram(name string) *program { return &program{name: name, labels: map[string]uint8{}} }

// label names the step that follows.
func (p *program) label(name string) { p.labels[name] = uint8(len(p.steps)) }

func (p *program) add(name string, do func(x *exec) result) {
	p.steps = append(p.steps, step{name: name, do: do})
}

func (p *program) scan(name string, do func(x *exec) result) {
	p.steps = append(p.steps, step{name: name, look: scans, do: do})
}

func (p *program) early(name string, do func(x *exec) result) {
	p.steps = append(p.steps, step{name: name, look: earlier, do: do})
}

func (p *program) store(name string, do func(x *exec) result) {
	p.steps = append(p.steps, step{name: name, store: true, do: do})
}

// jump goes on at a label.
func (x *exec) jump(label string) result {
	pc, ok := x.m.programs[x.p].labels[label]
	if !ok {
		panic("model: no label " + label)
	}
	x.me.pc = pc
	return jumped
}

// answer ends a client's request.
func (x *exec) answer(what string) result {
	x.note += ": " + what
	x.me.sets = [maxSets]set{}
	x.me.status = finished
	return ended
}

// fails ends the transaction with an error after which it runs again.
func (x *exec) fails(with string) result {
	x.note += ": " + with
	return failed
}

// breaks reports what must never be.
func (x *exec) breaks(what string) {
	if x.problem == "" {
		x.problem = what
	}
}

// Where statements with several rows keep what is left, and that they have begun.
const (
	pending = 0
	begun   = 1
)

// rows does a statement row by row, in the order of keys: which are its rows,
// and what to do with one (false: it has to wait).
func (x *exec) rows(which func() set, do func(i int) bool) result {
	fresh := x.me.sets[begun] == 0
	if fresh {
		x.me.sets[pending], x.me.sets[begun] = which(), 1
	}
	if x.me.sets[pending] == 0 {
		x.me.sets[begun] = 0
		return skip
	}
	i := x.me.sets[pending].lowest()
	if !do(i) {
		return wait
	}
	if x.me.sets[pending] &^= one(i); x.me.sets[pending] != 0 {
		return more
	}
	x.me.sets[begun] = 0
	return next
}

// after is review_after = gc_review_after(event): now() is when the transaction
// began, so some of the delay may have passed.
func (x *exec) after(delay uint8) uint8 {
	if x.m.noDelay || x.me.aged != 0 && delay == soon {
		return due
	}
	return delay
}

// greatest ends an INSERT INTO a queue: DO UPDATE SET review_after =
// GREATEST(q.review_after, EXCLUDED.review_after).
func (x *exec) greatest(row int, delay uint8) (ok bool) {
	value := x.after(delay)
	_, ok = x.upsert(row, func(old uint8) uint8 {
		if x.m.wrong(noGreatest) {
			return value
		}
		return max(old, value)
	})
	return ok
}

// queue is greatest as a trigger does it.
func (x *exec) queue(row int, delay uint8) (ok bool) {
	if x.m.wrong(doNothing) {
		_, ok = x.insert(row, x.after(delay))
		return ok
	}
	return x.greatest(row, delay)
}
