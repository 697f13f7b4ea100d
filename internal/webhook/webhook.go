// Package webhook tells a configured URL of what happens. A notice that is queued
// is sent at least once, whatever crashes, or given up after many attempts.
//
// # The protocol
//
// The table webhookdeliveries is an outbox. [Sender.Queue] writes a row in the
// transaction of what the notice tells, so the row is there exactly if that
// happened. Every process runs a [Sender], which repeats:
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
	"net/http"
	"net/url"
	"strconv"
	"strings"
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
	opt    Options // without URL and Secret
	url    *url.URL
	sign   func(id string, at time.Time, body string) string // nil: not
	client *http.Client
	scrub  func(string) string // takes what is secret of the URL out of a text
	send   *worker.Loop        // nil without a URL
	tidy   *worker.Loop
}

// New makes a sender. It starts nothing: see Run. Its errors say what is wrong with
// the URL, the secret, or both, and don't repeat them.
func New(o Options) (*Sender, error) {
	o.defaults()
	s := &Sender{}
	var problems []error
	if o.DB == nil {
		problems = append(problems, errors.New("webhook: the sender needs a database"))
	}
	if o.URL != "" {
		u, err := parseURL(o.URL, o.AllowPrivate)
		if err != nil {
			problems = append(problems, fmt.Errorf("webhook: the URL: %w", err))
		} else {
			s.url, s.scrub = u, scrubber(u)
		}
	}
	sign, err := signer(o.Secret)
	if err != nil {
		problems = append(problems, fmt.Errorf("webhook: the secret: %w", err))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	o.URL, o.Secret = "", ""
	s.opt, s.sign = o, sign
	s.tidy = worker.New(worker.Options{Name: "webhook tidy", Batch: s.tidyBatch, Log: o.Log, Metrics: o.Worker})
	if s.url != nil {
		s.client = newClient(o)
		// The batch ends before the lease, which begins later.
		s.send = worker.New(worker.Options{
			Name: "webhook", Batch: s.batch, Next: s.next, Timeout: o.Lease, Log: o.Log, Metrics: o.Worker,
		})
	}
	return s, nil
}

// Configured tells whether there is somebody to notify.
func (s *Sender) Configured() bool { return s != nil && s.url != nil }

// Run sends notices until ctx ends. Any number of processes may do so at once.
func (s *Sender) Run(ctx context.Context) error {
	if s.send == nil {
		return s.tidy.Run(ctx)
	}
	defer s.client.CloseIdleConnections()
	var g errgroup.Group
	g.Go(func() error { return s.send.Run(ctx) })
	g.Go(func() error { return s.tidy.Run(ctx) })
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
