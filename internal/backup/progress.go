package backup

import "sync"

// teller calls a function with the progress, one call at a time.
type teller struct {
	mu   sync.Mutex
	now  Progress
	tell func(Progress)
}

func newTeller(tell func(Progress)) *teller { return &teller{tell: tell} }

func (t *teller) change(f func(p *Progress)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.now)
	if t.tell != nil {
		t.tell(t.now)
	}
}

func (t *teller) step(name string) { t.change(func(p *Progress) { *p = Progress{Step: name} }) }

func (t *teller) total(objects int64) { t.change(func(p *Progress) { p.Total = objects }) }

func (t *teller) rows(rows, bytes int64) {
	t.change(func(p *Progress) { p.Rows, p.Bytes = p.Rows+rows, p.Bytes+bytes })
}

func (t *teller) object(bytes int64) {
	t.change(func(p *Progress) { p.Objects, p.Bytes = p.Objects+1, p.Bytes+bytes })
}
