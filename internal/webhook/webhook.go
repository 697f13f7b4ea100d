// Package webhook sends notices of what happens to URLs: to the configured one, and to the
// webhooks of namespaces. A queued notice is sent at least once, whatever crashes, or given
// up after many attempts.
//
// # The protocol
//
// The table webhooknotices is an outbox. [Sender.Queue] writes a row in the transaction of
// the event, so the row exists exactly if the event happened. Every process runs a
// [Sender], which repeats the steps below. (The view webhookdeliveries has only the rows
// for the configured URL: processes of the first release use the view, and would send any
// row that they see to that URL.)
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
// A row leaves the reach of claims in two ways only. It is recorded as delivered after the
// receiver answered 2xx. It is recorded as given up after a failure, by the holder of the
// lease; a crash gives nothing up, even during the last attempt. In all other states
// next_attempt is a time, and once that time has come the row is claimed, in the order of
// these times. So a process may die at any point: before the claim's commit nothing has
// changed, and after it the row is due again when the lease ends.
//
// Two processes may send the same notice: when the first dies between the answer and the
// record, or is delayed beyond its lease. Both use the row's id as webhook-id, by which the
// receiver recognises repeats. Their records don't conflict: a delivery is a fact, so it is
// recorded whoever has the lease by then, and overrides a given-up state; a failure is
// recorded only by the holder of the lease, so a late one changes nothing.
//
// Order isn't kept: while one notice waits for its next attempt, later ones are
// sent. Each says when its event was.
//
// # Webhooks of namespaces
//
// A namespace's webhooks are rows of the table webhooks. Their events come from the audit
// log, where each push, pull and deletion has an entry exactly if it happened. A dispatcher
// in every process reads the log in the order of (xid, id), and only entries of
// transactions older than every open one: nothing can be inserted between two of these any
// more. In one transaction it
//
//  1. locks the only row of webhookposition, or does nothing if another process has locked it;
//  2. reads the enabled webhooks, which it locks against deletion, and the entries behind the
//     position;
//  3. writes a notice into webhooknotices for each webhook that asks for the event or, for pulls,
//     adds their number to webhookcounts;
//  4. removes the counts that are due from webhookcounts, and writes a notice of each;
//  5. moves the position behind the entries that it has read.
//
// So each entry leads to one notice per webhook, or is in one count, which leads to one
// notice. If a process dies, all of the transaction has happened or nothing of it: the
// notice exists exactly if the position is behind its entry. Two processes can't read the
// same entry, since the second gets the lock after the first one's commit and then reads
// the new position. An entry that is committed late belongs to a transaction that was still
// open, so the position can't be behind it yet.
//
// Garbage collection writes no entries into the log. Its transactions write what they
// delete into webhookcollected if a webhook asks for that. The dispatcher
// deletes these rows in the transaction that adds them to webhookcounts.
//
// A webhook is told of what happens after it was enabled (active_since). The position has
// one part for changes and one for pulls. While no webhook asks for changes, the first part
// isn't moved; while none asks for pulls, the second isn't. The transaction that makes the
// first such webhook locks the row of webhookposition and moves that part to the end of the
// log. Entries of transactions that begin after the client's answer are behind that end,
// and a dispatcher that reads them sees the webhook.
//
// While a webhook is enabled the dispatcher looks at the log every second (two statements
// on indexes); otherwise it looks at two small tables once a minute. Webhooks cause no
// other work in the registry, except for the rows of webhookcollected.
//
// Each webhook has a lane of its own in each process (see lanes), so that receivers don't
// wait for each other. Claiming, sending and recording follow the protocol above.
//
// # Callbacks
//
// A client can name a URL that is to be called when an operation that it asked for is done
// (Call). The notice is a row like the others, with that URL. A separate loop claims and
// sends these by the same protocol. At most maxCallbacks wait at a time.
//
// # Where requests go
//
// A user who can set a URL could make Purser send requests to servers that only Purser
// reaches. Therefore addresses that aren't public are refused unless allowed. The check is
// made on the address that is about to be dialled, so it doesn't depend on how the URL
// writes it or what its name resolved to before. Redirects aren't followed, and proxies of
// the environment aren't used, since a proxy would dial instead of Purser. See check in
// address.go.
//
// Errors and logs never contain the secret, nor any part of the URL except its host.
package webhook

import (
	"cmp"
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

// Options configures a Sender.
type Options struct {
	DB *db.DB // required
	// URL receives the notices: http or https, without a user. Empty: no notices are queued
	// for the configured URL, and Run only removes those that are left from before.
	URL string
	// Secret is the key that signs the notices to URL: "whsec_" and base64 of 24 to 64
	// bytes, or other text of 24 to 512 bytes that is the key itself. Empty: the notices
	// aren't signed.
	Secret string
	// AllowPrivate permits receivers at addresses that aren't public.
	AllowPrivate bool
	// AllowPrivateHooks is like AllowPrivate, for the webhooks of namespaces.
	AllowPrivateHooks bool
	// Pulls says that pulls are written to the audit log. Otherwise webhooks that ask for
	// pulls are refused.
	Pulls bool
	// Window is how long pulls, and deletions by garbage collection, are counted before a
	// notice of them is sent. Default 1 min.
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
	o.Log = cmp.Or(o.Log, slog.Default())
}

func def[T int | time.Duration](p *T, value T) {
	if *p <= 0 {
		*p = value
	}
}

// Sender queues and sends notices. Its methods may be called concurrently. A nil Sender's
// Queue, Wake and Configured behave like those of a Sender without a URL.
type Sender struct {
	target                // the configured receiver; its url is nil if there is none
	opt      Options      // without URL and Secret
	send     *worker.Loop // nil without a URL
	tidy     *worker.Loop
	lanes    *lanes
	dispatch *worker.Loop
	// callbacks sends the callbacks that Call has queued.
	callbacks *worker.Loop
	watching  *atomic.Bool // a webhook of a namespace was enabled when last looked
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
	s := &Sender{target: to, opt: o, watching: new(atomic.Bool)}
	s.tidy = worker.New(worker.Options{Name: "webhook tidy", Batch: s.tidyBatch, Log: o.Log, Metrics: o.Worker})
	if s.url != nil {
		s.client = newClient(o, o.AllowPrivate)
		// A batch must end before its lease does. The lease begins later than the batch.
		s.send = worker.New(worker.Options{
			Name: "webhook", Batch: s.batch, Next: s.next, Timeout: o.Lease, Log: o.Log, Metrics: o.Worker,
		})
	}
	s.lanes = newLanes(s)
	s.callbacks = worker.New(worker.Options{ // a batch ends before its lease, as above
		Name: "callbacks", Batch: s.callbackBatch, Next: s.nextCallback, Timeout: o.Lease, Log: o.Log, Metrics: o.Worker,
	})
	s.dispatch = worker.New(worker.Options{
		Name: "webhook events", Batch: s.dispatchBatch, Next: s.nextLook, Log: o.Log, Metrics: o.Worker,
	})
	return s, nil
}

// Configured returns whether a URL is configured.
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

// Wake makes an idle sender look for notices now. Call it after the commit of a transaction
// that queued a notice; otherwise the notice is sent within a minute.
func (s *Sender) Wake() {
	if s.Configured() {
		s.send.Wake()
	}
}

// parseURL checks a URL as far as possible without looking up its host. Its errors don't
// repeat the text, which may contain credentials.
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
