// Package webhook sends notices of events to URLs: to the URL in the configuration, and to
// the webhooks that clients create in namespaces. A queued notice is sent at least once,
// even if processes crash, or is given up after many attempts.
//
// # The protocol
//
// The table webhooknotices is an outbox. [Sender.Queue] writes a row in the transaction of
// the event, so the row exists exactly if the event happened. Every process runs a
// [Sender], which repeats the steps below.
//
//  1. Claim: one statement selects notices that are due, FOR UPDATE SKIP LOCKED, writes a
//     new random lease id into them, and sets next_attempt to the end of the lease. It is a
//     transaction of its own.
//  2. Send the notices, outside of any transaction. Sending ends before the lease does.
//  3. Record the outcome. If the receiver answered 2xx, the notice is delivered. Otherwise
//     next_attempt becomes the time of the next attempt; after the last attempt, or after
//     410 Gone, the notice is given up. A process that is told to stop makes the notices
//     that it has claimed due again at once.
//
// # Why it is at least once
//
// A notice is not sent any more in only two cases: it was recorded as delivered, after the
// receiver answered 2xx; or it was recorded as given up, after a failure, by the process
// that has the lease. (A crash doesn't give a notice up, even during the last attempt.) In
// all other states the column next_attempt has a time, and a process claims the notice once
// that time has come, earliest time first. So a process may die at any point: before the
// claim's commit nothing has changed, and after it the notice is due again when the lease
// ends.
//
// Two processes may send the same notice: the first process may die between the receiver's
// answer and step 3, or be delayed beyond its lease, and a second process then claims the
// notice. Both processes send the row's id as webhook-id, by which the receiver recognises
// repeats. The outcomes that the two processes record don't conflict. A process records a
// delivery even if another process has the lease by then, and even if the notice was given
// up, because the receiver has the notice. A process records a failure only while it has
// the lease, so the late failure of the first process changes nothing.
//
// Notices may arrive in another order than their events happened: while one notice waits
// for its next attempt, later notices are sent. Each notice contains the time of its event.
//
// # Webhooks of namespaces
//
// A namespace's webhooks are rows of the table webhooks. Their events come from the audit
// log, which has an entry for a push, pull or deletion exactly if it happened. In every
// process a dispatcher reads the log's entries in the order of (xid, id), where xid is the
// id of the transaction that wrote the entry. It is given each entry once: see "How the log
// is followed" in package audit. One transaction of the dispatcher takes these steps:
//
//  1. It locks the only row of webhookposition. If another process has locked the row, the
//     dispatcher does nothing.
//  2. It reads the enabled webhooks, which it locks against deletion, and the audit log's
//     entries after the position.
//  3. It writes a notice into webhooknotices for each webhook that asks for an entry's
//     event. For a pull it writes no notice, but adds to the count in the webhook's row of
//     webhookcounts.
//  4. It deletes the rows of webhookcounts that are due, and writes a notice for each of
//     them.
//  5. It moves the position past the entries that it has read.
//
// Each entry of the log leads to one notice per webhook, or is part of one count, which
// leads to one notice. If a process dies, either all of the transaction has happened or
// nothing: a notice for an entry exists exactly if the position is past the entry. Two
// processes can't read the same entry, since the second process gets the lock on the row of
// webhookposition after the first one's commit and then reads the new position.
//
// Garbage collection writes no entries into the audit log. If a webhook asks for the event
// gc, the transactions of garbage collection write the number of deleted manifests into the
// table webhookcollected. The dispatcher adds these rows to webhookcounts and deletes them
// from webhookcollected, in one transaction.
//
// A webhook gets notices of events after it was enabled (active_since). The row of
// webhookposition has two positions, one for changes and one for pulls. While no webhook
// asks for changes, the dispatcher doesn't move the position for changes; likewise for
// pulls. The transaction that creates or enables the first webhook that asks for changes
// (or pulls) locks this row and moves the position to the end of the log. When the client
// gets its answer, this transaction has committed. Transactions that begin later write
// their entries behind this end of the log, so the dispatcher reads these entries, and it
// already sees the webhook then.
//
// While a webhook is enabled, the dispatcher looks for new entries in the log every second,
// with two statements that use database indexes. While none is enabled, it only looks at
// two small tables once a minute. Webhooks cause no other work in the registry, except for
// the rows of webhookcollected.
//
// In each process, each webhook with due notices has a goroutine of its own, its lane (see
// lanes). A lane claims, sends and records notices by the protocol above. Lanes are few, and
// each namespace and host has a share of them, so that slow receivers don't delay the notices
// for others (see shares).
//
// # Callbacks
//
// A client can name a URL that Purser calls when an operation that the client asked for is
// done ([Sender.Call]). Such a callback is a row of webhooknotices with its own URL. A loop
// of its own claims and sends callbacks by the same protocol (see calls). At most maxCallbacks of
// them may wait at a time, and fewer of one account or for one namespace. A callback is given up
// after callbackAge.
//
// # Where requests go
//
// A user who can set a webhook's URL could make Purser send requests to servers that only
// Purser can reach. Therefore Purser refuses addresses that aren't public, unless the
// configuration allows them. It checks the IP address that is about to be dialled (see the
// package netguard). Purser doesn't follow redirects, and doesn't use the proxies of the
// environment, since a proxy would dial instead of Purser.
//
// Errors and logs of this package contain neither the secret nor any part of a URL except
// its host.
package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/netguard"
	"github.com/purser-registry/purser/internal/worker"
)

// Options configures a Sender.
type Options struct {
	DB *db.DB // required
	// URL is the configured URL to which notices are sent: http or https, without a user.
	// Empty: Queue queues no notices, and Run only deletes notices that were queued for an
	// earlier URL.
	URL string
	// Secret is the key that signs the notices to URL. It is "whsec_" followed by base64 of
	// 24 to 64 bytes, or any other text of 24 to 512 bytes, which then is the key itself.
	// Empty: the notices aren't signed.
	Secret string
	// AllowPrivate allows URL to have an address that isn't public.
	AllowPrivate bool
	// AllowPrivateHooks allows the URLs of namespaces' webhooks and of callbacks to have
	// addresses that aren't public.
	AllowPrivateHooks bool
	// Pulls says that the registry writes pulls to the audit log. If it is false, clients
	// can't create webhooks that ask for pulls.
	Pulls bool
	// Window is how long the dispatcher counts pulls, and manifests that garbage collection
	// deletes, before it sends one notice with their number. Default 1 min.
	Window time.Duration
	// Look is how often the dispatcher looks for new entries in the audit log while a
	// webhook is enabled. Default 1 s.
	Look time.Duration
	// MostHooks is how many webhooks a namespace may have. Default 32.
	MostHooks int
	// MaxWaiting is how many notices may wait for a webhook before the registry disables
	// it. Default 100,000.
	MaxWaiting int
	// Timeout is the limit for one attempt, from looking up the host to the end of the
	// receiver's answer. Default 10 s.
	Timeout time.Duration
	// MaxAttempts is the number of attempts to send a notice before it is given up. Default
	// 12.
	MaxAttempts int
	// RetryMin is the pause after the first attempt. Each further pause is three times as
	// long as the pause before it, but at most RetryMax. Each pause is shortened by up to a
	// fifth at random. Defaults: 5 s and 24 h. RetryMax is at most 30 days.
	RetryMin, RetryMax time.Duration
	// Parallel is how many notices for the configured URL this process sends at once. In
	// addition, the process sends up to as many callbacks at once. Default 8.
	Parallel int
	// Lease is how long other processes can't claim a notice that this process has claimed.
	// The default, which is also the least value, is twice Timeout plus 5 s.
	Lease time.Duration
	// Keep is how long notices are kept after they were delivered or given up. Default 7
	// days.
	Keep time.Duration
	// MayDelete returns an error that wraps worker.ErrRest while nothing may be deleted for its age.
	// Nil: it may.
	MayDelete func(ctx context.Context) error
	Log       *slog.Logger    // default slog.Default()
	Metrics   *Metrics        // nil: none
	Worker    *worker.Metrics // nil: none
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
	o.MostHooks = cmp.Or(o.MostHooks, maxHooks)
	o.Lease = max(o.Lease, 2*o.Timeout+5*time.Second)
	o.Log = cmp.Or(o.Log, slog.Default())
}

func def[T int | time.Duration](p *T, value T) {
	if *p <= 0 {
		*p = value
	}
}

// Sender queues and sends notices. Its methods may be called concurrently. On a nil Sender,
// the methods Queue, Wake and Configured behave as on a Sender without a URL.
type Sender struct {
	target                // the configured receiver; its url is nil if there is none
	opt      Options      // without URL and Secret
	send     *worker.Loop // nil without a URL
	tidy     *worker.Loop
	lanes    *lanes
	dispatch *worker.Loop
	calls    *calls
	watching *atomic.Bool // a webhook of a namespace was enabled when last looked
}

// New makes a sender, which does nothing before Run. Its errors say what is wrong with the
// URL or the secret, and repeat neither of them.
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
		// A batch must end before the lease on its notices does. The lease begins later
		// than the batch, so the batch ends in time if it takes no longer than the lease.
		s.send = worker.New(worker.Options{
			Name: "webhook", Batch: s.batch, Next: s.next, Timeout: o.Lease, Log: o.Log, Metrics: o.Worker,
		})
	}
	s.lanes = newLanes(s)
	s.calls = newCalls(s)
	s.dispatch = worker.New(worker.Options{
		Name: "webhook events", Batch: s.dispatchBatch, Next: s.nextLook, Log: o.Log, Metrics: o.Worker,
	})
	return s, nil
}

// Configured returns whether a URL is configured.
func (s *Sender) Configured() bool { return s != nil && s.url != nil }

// Run sends notices until ctx ends. Any number of processes may call it at the same time.
func (s *Sender) Run(ctx context.Context) error {
	var g errgroup.Group
	if s.send != nil {
		defer s.client.CloseIdleConnections()
		g.Go(func() error { return s.send.Run(ctx) })
	}
	g.Go(func() error { return s.tidy.Run(ctx) })
	g.Go(func() error { return s.lanes.run(ctx) })
	g.Go(func() error { return s.dispatch.Run(ctx) })
	g.Go(func() error { return s.calls.run(ctx) })
	return g.Wait()
}

// Wake makes an idle sender look for due notices now. Callers of Queue should call it after
// their transaction has committed; otherwise the notice is sent within a minute.
func (s *Sender) Wake() {
	if s.Configured() {
		s.send.Wake()
	}
}

// guard refuses receivers whose addresses aren't public.
var guard = netguard.Guard{Hint: "name another host, or, if the receiver is meant to be there, set allow_private (autoprune.webhook.allow_private, or webhooks.allow_private for webhooks of namespaces and callbacks)"}

// CheckURL returns what is wrong with Options.URL, nil if nothing is. It doesn't look up the host. The
// error doesn't repeat the URL.
func CheckURL(text string, allowPrivate bool) error {
	if text == "" {
		return nil
	}
	_, err := parseURL(text, allowPrivate)
	return err
}

// parseURL checks and parses a URL, without looking up its host. Its errors don't repeat
// the URL, which may contain credentials.
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
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil && !allowPrivate { // it isn't a name
		if err := guard.Check(addr); err != nil {
			return nil, err
		}
	}
	return u, nil
}
