// Package webhook tells a configured URL of what happens. A notice that is queued
// is sent at least once, whatever crashes, or given up after many attempts.
//
// # The protocol
//
// The table webhooknotices is an outbox. [Sender.Queue] writes a row in the
// transaction of what the notice tells, so the row is there exactly if that
// happened. Every process runs a [Sender], which repeats the steps below. (The view
// webhookdeliveries has the rows for the URL of the configuration alone: processes of the
// first release use it, and would send any row that they see to that URL.)
//
//  1. Claim: one statement takes rows that are due, FOR UPDATE SKIP LOCKED, writes
//     a lease of its own into them, and moves next_attempt to the lease's end.
//     It is committed by itself.
//  2. Send, outside of any transaction. Sending ends before the lease does.
//  3. Record: 2xx, and the row is delivered. Else next_attempt becomes the time of
//     the next attempt; after the last one, or 410 Gone, the row is given up. A
//     process that is told to stop gives its rows back at once.
//
// # Why it is at least once
//
// A row is settled, and so out of reach of a claim, in two ways only. Delivered is
// written after the receiver answered 2xx. Given up is written after a failure
// that was seen, by the holder of the lease: a crash gives nothing up, even when
// it was the last attempt. In all other states next_attempt is a time that comes,
// and a row whose time has come is claimed, in the order of these times. So a
// process may die at any point: before the claim's commit nothing has changed,
// after it the row is due again when the lease ends.
//
// Two may send the same notice: when one dies between the answer and the record,
// or is held up beyond its lease. Both use the row's id as webhook-id, by which
// the receiver tells repeats. Their records don't harm each other: that a notice
// was delivered is a fact and is recorded whoever holds the lease by then, and
// overrides that it was given up; a failure is recorded only while the lease is
// still the sender's, so one that comes late changes nothing.
//
// Order isn't kept: while one notice waits for its next attempt, later ones are
// sent. Each says when its event was.
//
// # Webhooks of namespaces
//
// A namespace's webhooks are rows of the table webhooks. What they are told is in the
// audit log, where each push, pull and deletion has its entry exactly if it happened. A
// dispatcher in every process reads the log in the order of (xid, id), and only entries of
// transactions that are older than every open one: what is between two of these can't
// change any more. In one transaction it
//
//  1. locks the only row of webhookposition, or leaves it to another process that has;
//  2. reads the entries behind the position, and the webhooks, which it keeps;
//  3. writes a notice into webhooknotices for each webhook that an event is for, or
//     adds to webhookcounts what is counted first;
//  4. takes counts that are due out of webhookcounts, and writes a notice of each;
//  5. moves the position behind what it has read.
//
// So each entry gives one notice, or is in one count, which gives one notice. A process
// that dies leaves all of the transaction or nothing of it: the notice is there exactly if
// the position is behind its entry. Two processes can't read the same entry, since the
// second one gets the lock after the first one's commit and reads the position anew. An
// entry that is committed late is of a transaction that was open, so the position isn't
// behind it yet.
//
// Garbage collection has no entries in the log. Its transactions write what they delete
// into webhookcollected where a webhook wants to know (InsertCollected), and the dispatcher
// deletes these rows in the transaction that adds them to webhookcounts.
//
// A webhook is told of what happened since it was enabled (active_since). While nobody
// wants to be told of changes, or of pulls, the position isn't moved; whoever makes the
// first webhook that does moves it to the end of the log. That transaction holds the
// position's lock. An entry whose transaction began after the answer is behind that end,
// and a dispatcher that reads it sees the webhook.
//
// The log is looked at each second while a webhook is enabled (two statements on indexes),
// and each minute, by a statement on two small tables, while none is. Nothing else in the
// registry does anything for webhooks.
//
// Each webhook has a lane of its own in each process (see lanes), so that receivers don't
// wait for each other. Steps 2 and 3 of the protocol above are the same for all.
//
// # Callbacks
//
// A client can name a URL that is to be told when something that it asked for is done
// (Call). Its notice is a row like the others, with that URL, and a loop of its own
// claims and sends these by the same protocol. At most maxCallbacks wait at a time.
//
// # Where requests go
//
// Who can set the URL could make Purser ask servers that only Purser reaches. So
// addresses that aren't public are refused, unless they are allowed, at the moment
// when one is dialled: whatever a name resolves to then, and however the URL
// writes it. Redirects aren't followed, and proxies of the environment aren't
// used, since a proxy would dial in our place. See check in address.go.
//
// The secret, and of the URL all but its host, is in no error and no log.
package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

// Options says where notices go and how often they are tried.
type Options struct {
	DB *db.DB // required
	// URL receives the notices: http or https, without a user. Empty: no notices
	// are queued, and Run only clears away what was left.
	URL string
	// Secret signs them: "whsec_" and base64 of 24 to 64 bytes, or other text of 24
	// to 512 bytes that is the key itself. Empty: they aren't signed.
	Secret string
	// AllowPrivate permits receivers at addresses that aren't public.
	AllowPrivate bool
	// AllowPrivateHooks is AllowPrivate for the webhooks of namespaces.
	AllowPrivateHooks bool
	// Pulls says that the audit log has pulls. Without them no webhook can be told of
	// any, and one that wants to be is refused.
	Pulls bool
	// Window is how long pulls and deletions by garbage collection are counted before
	// they are told. Default 1 min.
	Window time.Duration
	// Look is how often the audit log is looked at while a webhook is enabled. Default
	// 1 s.
	Look time.Duration
	// MaxWaiting is how many notices may wait for a webhook before it is disabled.
	// Default 100,000.
	MaxWaiting int
	// Timeout bounds one attempt, from looking up the host to the end of the
	// answer. Default 10 s.
	Timeout time.Duration
	// MaxAttempts is how often a notice is tried. Default 12.
	MaxAttempts int
	// RetryMin is the pause after the first attempt, RetryMax the longest one; each
	// pause is three times the one before, less up to a fifth at random. Defaults:
	// 5 s and 24 h; the most: 30 days.
	RetryMin, RetryMax time.Duration
	// Parallel is how many notices this process sends at once. Default 8.
	Parallel int
	// Lease is how long a claimed notice is kept from other processes. Default, and
	// the least, is twice Timeout and 5 s.
	Lease time.Duration
	// Keep is how long delivered notices, and those given up, are kept. Default 7
	// days.
	Keep    time.Duration
	Log     *slog.Logger    // default slog.Default()
	Metrics *Metrics        // nil: none
	Worker  *worker.Metrics // nil: none
}

const maxRetry = 30 * 24 * time.Hour

func (o *Options) defaults() {
	def(&o.Timeout, 10*time.Second)
	def(&o.MaxAttempts, 12)
	def(&o.RetryMin, 5*time.Second)
	def(&o.RetryMax, 24*time.Hour)
	def(&o.Parallel, 8)
	def(&o.Keep, 7*24*time.Hour)
	def(&o.Window, time.Minute)
	def(&o.Look, time.Second)
	def(&o.MaxWaiting, 100_000)
	o.RetryMax = min(max(o.RetryMax, o.RetryMin), maxRetry)
	o.RetryMin = min(o.RetryMin, o.RetryMax)
	o.Lease = max(o.Lease, 2*o.Timeout+5*time.Second)
	if o.Log == nil {
		o.Log = slog.Default()
	}
}

func def[T int | time.Duration](p *T, value T) {
	if *p <= 0 {
		*p = value
	}
}

// Sender queues and sends notices. Its methods may be called concurrently. Queue,
// Wake and Configured of a nil Sender are those of one without a URL.
type Sender struct {
	target                // of the configuration; its url is nil if there is none
	opt      Options      // without URL and Secret
	send     *worker.Loop // nil without a URL
	tidy     *worker.Loop
	lanes    *lanes
	dispatch *worker.Loop
	// callbacks sends the requests of Call.
	callbacks *worker.Loop
	watching  *atomic.Bool            // a webhook of a namespace was enabled at the last look
	crash     func(step string) error // for tests: stands in for the end of the process
}

// New makes a sender. It starts nothing: see Run. Its errors say what is wrong with
// the URL, the secret, or both, and don't repeat them.
func New(o Options) (*Sender, error) {
	o.defaults()
	to, err := newTarget(o.URL, o.Secret, o.AllowPrivate)
	if o.DB == nil {
		err = errors.Join(errors.New("webhook: the sender needs a database"), err)
	}
	if err != nil {
		return nil, err
	}
	o.URL, o.Secret = "", ""
	s := &Sender{target: to, opt: o, watching: new(atomic.Bool), crash: func(string) error { return nil }}
	s.tidy = worker.New(worker.Options{Name: "webhook tidy", Batch: s.tidyBatch, Log: o.Log, Metrics: o.Worker})
	if s.url != nil {
		s.client = newClient(o, o.AllowPrivate)
		// The batch ends before the lease, which begins later.
		s.send = worker.New(worker.Options{
			Name: "webhook", Batch: s.batch, Next: s.next, Timeout: o.Lease, Log: o.Log, Metrics: o.Worker,
		})
	}
	s.lanes = newLanes(s)
	s.callbacks = worker.New(worker.Options{ // the batch ends before the lease, as above
		Name: "callbacks", Batch: s.callbackBatch, Next: s.nextCallback, Timeout: o.Lease, Log: o.Log, Metrics: o.Worker,
	})
	s.dispatch = worker.New(worker.Options{
		Name: "webhook events", Batch: s.dispatchBatch, Next: s.nextLook, Log: o.Log, Metrics: o.Worker,
	})
	return s, nil
}

// Configured tells whether there is somebody to notify.
func (s *Sender) Configured() bool { return s != nil && s.url != nil }

// Run sends notices until ctx ends. Any number of processes may do so at once.
func (s *Sender) Run(ctx context.Context) error {
	var g errgroup.Group
	if s.send != nil {
		defer s.client.CloseIdleConnections()
		g.Go(func() error { return s.send.Run(ctx) })
	}
	g.Go(func() error { return s.tidy.Run(ctx) })
	g.Go(func() error { return s.lanes.run(ctx) })
	g.Go(func() error { return s.dispatch.Run(ctx) })
	g.Go(func() error { return s.callbacks.Run(ctx) })
	return g.Wait()
}

// Wake makes an idle sender look for notices now. Call it after the commit of a
// transaction that queued one; without it, one is sent within a minute.
func (s *Sender) Wake() {
	if s.Configured() {
		s.send.Wake()
	}
}

// parseURL checks what is known before the host is looked up. Its errors don't
// repeat the text, which may hold credentials.
func parseURL(text string, allowPrivate bool) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "" && (u.Scheme == "http" || u.Scheme == "https"):
		return nil, errors.New("it can't be read as a URL with a host; write it as https://host/path")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("its scheme is neither http nor https; write it as https://host/path")
	case u.User != nil:
		return nil, errors.New("it may not hold a user or a password; the receiver knows Purser by the signature")
	case u.Fragment != "" || strings.Contains(text, "#"):
		return nil, errors.New("it has a fragment (#…), which is never sent; remove it")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, fmt.Errorf("its port, %s, isn't from 1 to 65535", port)
		}
	}
	if addr, ok := literal(u.Hostname()); ok && !allowPrivate {
		if err := check(addr); err != nil {
			return nil, err
		}
	}
	return u, nil
}
