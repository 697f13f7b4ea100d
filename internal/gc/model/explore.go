package model

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// machine is a world, the processes in it and where they start.
type machine struct {
	world
	programs []*program
	start    state
	noDelay  bool // every review_after is now()
	crashes  bool // clients and sweepers may die
	mutation mutation
	// mayDeadlock says that clients may wait for each other in a circle; one of
	// them runs again then.
	mayDeadlock bool
	limit       int // states; default 2 million
}

func (m *machine) wrong(what mutation) bool { return m.mutation == what }

// What may happen to a process besides its next step.
const (
	steps uint8 = iota
	gives       // a worker's transaction is rolled back
	dies
	loses // a client's transaction is rolled back to break a circle
	passes
)

// action is an edge between two states.
type action struct {
	who, what, choice uint8
}

type node struct {
	parent int32
	action action
}

// outcome is what an exploration found.
type outcome struct {
	states  int
	ends    int // states in which nothing is left to happen
	circles int // of clients that wait for each other, met on the way
	problem string
	trace   []string
}

// explorer walks through all states, those with the fewest steps first.
type explorer struct {
	m       *machine
	seeds   [2]maphash.Seed
	seen    map[[2]uint64]int32
	nodes   []node
	edges   [][2]int32
	level   []numbered // states whose successors are looked for now
	coming  []numbered
	ends    []int32
	outcome outcome
}

type numbered struct {
	id int32
	s  state
}

// explore visits every state that can be reached. It stops at the first problem.
func (m *machine) explore() outcome {
	if m.limit == 0 {
		m.limit = 2_000_000
	}
	e := &explorer{m: m, seen: map[[2]uint64]int32{}, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	e.visit(-1, action{}, &m.start, m.check(&m.start))
	for len(e.coming) > 0 && e.outcome.problem == "" {
		e.level, e.coming = e.coming, e.level[:0]
		for i := range e.level {
			e.successors(&e.level[i])
			if e.outcome.problem != "" {
				break
			}
		}
	}
	if e.outcome.problem == "" {
		e.stuck()
	}
	e.outcome.states, e.outcome.ends = len(e.nodes), len(e.ends)
	return e.outcome
}

// visit notes that s is reached from parent.
func (e *explorer) visit(parent int32, a action, s *state, problem string) {
	key := [2]uint64{maphash.Comparable(e.seeds[0], *s), maphash.Comparable(e.seeds[1], *s)}
	id, known := e.seen[key]
	if !known {
		id = int32(len(e.nodes))
		e.seen[key] = id
		e.nodes = append(e.nodes, node{parent, a})
		e.coming = append(e.coming, numbered{id, *s})
		if problem == "" {
			problem = e.m.check(s)
		}
		if len(e.nodes) > e.m.limit {
			problem = "too many states"
		}
	}
	if parent >= 0 {
		e.edges = append(e.edges, [2]int32{parent, id})
	}
	if problem != "" && e.outcome.problem == "" {
		e.outcome.problem = problem
		if known { // it's the way here that is wrong
			e.nodes = append(e.nodes, node{parent, a})
			id = int32(len(e.nodes) - 1)
		}
		e.outcome.trace = e.trace(id)
	}
}

func (e *explorer) successors(n *numbered) {
	before := len(e.edges)
	for p := range e.m.programs {
		for _, what := range []uint8{steps, gives, dies, loses} {
			e.try(n, action{who: uint8(p), what: what})
		}
	}
	for t := range uint8(times) {
		e.try(n, action{what: passes, choice: t})
	}
	if len(e.edges) == before {
		e.ends = append(e.ends, n.id)
		if problem := e.m.checkEnd(&n.s); problem != "" && e.outcome.problem == "" {
			e.outcome.problem, e.outcome.trace = problem, e.trace(n.id)
		}
	}
}

// try takes an action, in each of the ways that it has.
func (e *explorer) try(n *numbered, a action) {
	for choices := uint8(1); a.choice < choices || a.what == passes; a.choice++ {
		s := n.s
		x, ok := e.m.take(&s, a)
		if ok && s != n.s {
			if x.circle {
				e.outcome.circles++
			}
			e.visit(n.id, a, &s, x.problem)
		}
		if a.what == passes {
			return
		}
		choices = uint8(max(1, x.choices))
	}
}

// taken is what is to be known of an action.
type taken struct {
	choices int
	note    string
	problem string
	circle  bool
}

// take does an action to s. False: it isn't possible.
func (m *machine) take(s *state, a action) (taken, bool) {
	if a.what == passes {
		note, ok := m.pass(s, a.choice)
		return taken{note: note}, ok
	}
	x := &exec{m: m, s: s, p: int(a.who), me: &s.procs[a.who], choice: int(a.choice)}
	if x.me.status != running {
		return taken{}, false
	}
	var ok bool
	var circle uint8
	switch a.what {
	case steps:
		if ok = x.me.blocked == 0; ok {
			ok = x.step()
			if circle = m.circle(s, a.who); circle != 0 && x.problem == "" {
				m.judge(x, circle)
			}
		}
	case gives:
		ok = x.giveWay()
	case dies:
		ok = x.die()
	case loses:
		ok = x.lose()
	}
	return taken{x.choices, x.note, x.problem, ok && a.what == steps && circle != 0 && m.clients(circle)}, ok
}

// step runs the process up to where others may act.
func (x *exec) step() bool {
	for {
		st := &x.m.programs[x.p].steps[x.me.pc]
		x.note = st.name
		if !st.store {
			x.me.begun = 1
		}
		if st.look == earlier && x.me.reading == 0 {
			x.snapshot()
			x.note += " (its snapshot)"
			return true
		}
		x.me.pc++
		r := st.do(x)
		if r == wait || r == more {
			x.me.pc--
		}
		switch r {
		case wait:
			if st.look == scans {
				x.snapshot()
			}
			x.note += x.m.waiting(x.me.blocked)
			return true
		case more:
			if st.look != newest {
				x.snapshot()
			}
			return true
		case idle:
			x.me.begun = 0
			return false
		case ended:
			if x.me.begun != 0 {
				x.rollback()
			}
			return true
		case failed:
			x.lost()
			return true
		}
		if x.me.reading != 0 {
			x.me.reading, x.me.gone, x.me.seen = 0, 0, [maxRows]uint8{}
		}
		if r != skip {
			return true
		}
	}
}

func (x *exec) snapshot() {
	if x.me.reading == 0 {
		x.me.reading, x.me.seen = 1, x.s.rows
	}
}

// lost rolls back and begins again.
func (x *exec) lost() {
	x.rollback()
	x.me.sets = [maxSets]set{attempt: x.me.sets[attempt], number: x.me.sets[number]}
	x.jump(x.m.programs[x.p].rerun)
}

// giveWay ends a worker's transaction: by lock_timeout, a failure, or its death.
func (x *exec) giveWay() bool {
	prog := x.m.programs[x.p]
	if !prog.worker || x.me.begun == 0 || x.m.wrong(noLockTimeout) && x.me.blocked != 0 {
		return false
	}
	x.note = "gives way"
	waited := x.me.blocked != 0
	x.rollback()
	keep := x.me.sets[claimed]
	x.me.sets = [maxSets]set{}
	x.jump(prog.rerun)
	if waited && prog.after != "" && keep.size() == 1 {
		x.choices = 2
		if x.choice == 1 {
			x.note += ", to put the review off"
			x.me.sets[claimed] = keep
			x.jump(prog.after)
		}
	}
	return true
}

// die ends a client for good; a worker is started again.
func (x *exec) die() bool {
	prog := x.m.programs[x.p]
	if !x.m.crashes || prog.worker && (x.me.begun != 0 || x.me.pc == prog.labels[prog.rerun]) {
		return false // a worker's death in a transaction is giveWay
	}
	x.note = "dies"
	x.rollback()
	x.me.sets = [maxSets]set{}
	if prog.worker {
		x.jump(prog.rerun)
		return true
	}
	x.me.pc, x.me.status = 0, crashed
	return true
}

// circle returns the processes that p waits for and that wait for p.
func (m *machine) circle(s *state, p uint8) (members uint8) {
	if s.procs[p].blocked == 0 {
		return 0
	}
	reach := [maxProcs]uint8{}
	for q := range m.programs {
		reach[q] = s.procs[q].blocked
	}
	for k := range m.programs {
		for q := range m.programs {
			if reach[q]>>k&1 == 1 {
				reach[q] |= reach[k]
			}
		}
	}
	for q := range m.programs {
		if reach[p]>>q&1 == 1 && reach[q]>>p&1 == 1 {
			members |= 1 << q
		}
	}
	return members
}

// clients says whether no worker is among the members of a circle.
func (m *machine) clients(members uint8) bool {
	for q := range m.programs {
		if members>>q&1 == 1 && m.programs[q].worker {
			return false
		}
	}
	return true
}

// judge decides whether a circle may be.
func (m *machine) judge(x *exec, members uint8) {
	switch {
	case m.clients(members):
		if !m.mayDeadlock {
			x.breaks("clients wait for each other:" + m.waiting(members))
		}
	case m.wrong(noLockTimeout):
		x.breaks("a client and a reviewer wait for each other, and neither gives way:" + m.waiting(members))
	}
}

// lose rolls back a client of a circle: deadlock_detected, after which its
// transaction runs again.
func (x *exec) lose() bool {
	if x.me.blocked == 0 || !x.m.mayDeadlock {
		return false
	}
	members := x.m.circle(x.s, uint8(x.p))
	if members == 0 || !x.m.clients(members) {
		return false
	}
	x.note = "loses a deadlock"
	x.lost()
	return true
}

func (m *machine) waiting(who uint8) string {
	var names []string
	for q, p := range m.programs {
		if who>>q&1 == 1 {
			names = append(names, p.name)
		}
	}
	return " — waits for " + strings.Join(names, ", ")
}

// stuck looks for states from which no end can be reached: everybody waits, or
// goes round and round.
func (e *explorer) stuck() {
	into := make([]int32, len(e.nodes)+1)
	for _, edge := range e.edges {
		into[edge[1]+1]++
	}
	for i := range e.nodes {
		into[i+1] += into[i]
	}
	from, fill := make([]int32, len(e.edges)), append([]int32(nil), into...)
	for _, edge := range e.edges {
		from[fill[edge[1]]] = edge[0]
		fill[edge[1]]++
	}
	reaches := make([]bool, len(e.nodes))
	todo := append([]int32(nil), e.ends...)
	for _, id := range todo {
		reaches[id] = true
	}
	for len(todo) > 0 {
		id := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, before := range from[into[id]:into[id+1]] {
			if !reaches[before] {
				reaches[before] = true
				todo = append(todo, before)
			}
		}
	}
	for id, ok := range reaches {
		if !ok {
			e.outcome.problem, e.outcome.trace = "from here on it never comes to rest", e.trace(int32(id))
			return
		}
	}
}

// trace tells how a state is reached.
func (e *explorer) trace(id int32) []string {
	var actions []action
	for ; e.nodes[id].parent >= 0; id = e.nodes[id].parent {
		actions = append(actions, e.nodes[id].action)
	}
	s := e.m.start
	lines := make([]string, 0, len(actions))
	for i := len(actions) - 1; i >= 0; i-- {
		a := actions[i]
		before := s
		t, _ := e.m.take(&s, a)
		who := "time"
		if a.what != passes {
			who = e.m.programs[a.who].name
		}
		lines = append(lines, fmt.Sprintf("%-14s %s%s", who, t.note, e.m.changes(&before, &s)))
	}
	return lines
}

// changes tells what a step committed.
func (m *machine) changes(before, after *state) string {
	var list []string
	for row := range m.rows {
		if was, is := before.rows[row], after.rows[row]; was != is {
			list = append(list, fmt.Sprintf("%s: %d→%d", m.rowName(row), was, is))
		}
	}
	for k := range m.keys() {
		if was, is := before.objects[k], after.objects[k]; was != is {
			list = append(list, fmt.Sprintf("object %d: %d→%d", k, was, is))
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "  [" + strings.Join(list, ", ") + "]"
}
