package server

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/session"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
)

// Observation collects data about a request, for the log and the metrics, while the request is
// answered. It is also the request's ResponseWriter, and so sees the answer's status and size.
// It implements io.ReaderFrom, so that files can still be sent with sendfile.
type Observation struct {
	http.ResponseWriter
	ID     string
	Client string       // the client whose limits apply
	Base   string       // prefix of the URLs in the answer
	Lease  *limit.Lease // counts the memory of the request
	// Route and Method are labels of metrics. The interface that answers the request sets them.
	// They stay "none" and "any" if no route has the request's path or method: clients may send
	// arbitrary paths and methods, and each new label value would start new time series. A Method
	// that no route has counts as "any" too (methodLabel).
	Route, Method string
	Err           error // for the log
	// Principal is who sent the request. It is never nil once a route is looked for.
	Principal *auth.Principal

	status  int
	sent    int64
	read    int64
	cut     bool        // the store failed after part of the answer was sent
	trips   *db.Counter // round trips to the database
	proxy   string      // RemoteAddr of the connection, if a proxy named the client
	drained bool        // the body has been read to its end
	sending sending
	authErr error // the credentials that the client has sent are wrong, or couldn't be checked
	mounted *Mount
	// encrypted says that the client has sent the request over https, to Purser or to a proxy.
	encrypted bool
	// absoluteBase is the scheme and host by which the client reaches the registry.
	absoluteBase string
	// sharer is whose share the request uses (ShareOf): it changes when the account is known, while
	// work that the request has begun may still go on.
	sharer atomic.Pointer[sharer]
}

// sharer is a client whose requests share connections with those of others. An account is known, and
// so is an address from which an account has logged in lately.
type sharer struct {
	name  string
	known bool
}

type observationKey struct{}

// Observed returns the Observation of the request that has the context `ctx`. It panics if
// `ctx` doesn't come from a request that went through the handler which observe returns.
func Observed(ctx context.Context) *Observation {
	return ctx.Value(observationKey{}).(*Observation)
}

func (o *Observation) WriteHeader(status int) {
	if o.status == 0 && status >= 200 {
		o.status = status
	}
	o.sending.extend()
	o.ResponseWriter.WriteHeader(status)
}

func (o *Observation) Write(p []byte) (int, error) {
	o.status = cmp.Or(o.status, http.StatusOK)
	n, err := o.sending.write(o.ResponseWriter, p)
	o.sent += int64(n)
	return n, err
}

// ReadFrom copies src to the client. It lets the connection itself read from src, so that a
// file is sent with sendfile.
func (o *Observation) ReadFrom(src io.Reader) (int64, error) {
	o.status = cmp.Or(o.status, http.StatusOK)
	n, err := o.sending.readFrom(o.ResponseWriter, src)
	o.sent += n
	return n, err
}

// Account returns the name of the account that is logged in, "" if none is.
func (o *Observation) Account() string {
	if o.Principal == nil || !o.Principal.LoggedIn() {
		return ""
	}
	return o.Principal.Name
}

// Share names whose share of what all clients share the request uses (see limit.Share). "" if nobody is
// logged in.
func (o *Observation) Share() string { return limit.Share(o.Account()) }

// ShareOf names whose share of what all clients share the request with a context uses: that of its
// account (Observation.Share) or, as long as it has none, of its client's address. "" for work of the process.
// `known` says whether that is an account, an address from which one has logged in lately, or the process.
func ShareOf(ctx context.Context) (client string, known bool) {
	o, ok := ctx.Value(observationKey{}).(*Observation)
	if !ok {
		return "", true
	}
	if of := o.sharer.Load(); of != nil {
		return of.name, of.known
	}
	return "", true
}

// Encrypted says whether the client has sent the request over https: to Purser, or to a trusted
// proxy that says so.
func (o *Observation) Encrypted() bool { return o.encrypted }

// Unwrap returns the wrapped writer, for http.ResponseController.
func (o *Observation) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// countedBody counts the bytes of a request's body.
type countedBody struct {
	io.ReadCloser
	o        *Observation
	progress *limit.Progress
}

func (b countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.o.read += int64(n)
	b.progress.Useful(n)
	b.o.drained = b.o.drained || err != nil
	return n, err
}

// observe returns a handler that gives each request an id and deadlines, passes it to `next`,
// counts it and logs it. If `next` panics, the handler logs the panic. It then answers with 500
// or, if part of the answer was already sent, closes the connection (finish).
func (s *Server) observe(next http.Handler) http.Handler {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		o := &Observation{ResponseWriter: w, ID: requestID(r), Route: "none", Method: anyMethod, drained: r.ContentLength == 0,
			sending: s.newSending(w)}
		o.encrypted = s.opt.Proxies.Encrypted(r)
		remote := s.remote(r, o)
		o.Client, o.Base = limit.Client(remote), s.external.base(r, o.proxy != "")
		if s.opt.Tracing { // otelhttp takes the first entry of X-Forwarded-For, which any client can forge
			trace.SpanFromContext(r.Context()).SetAttributes(attribute.String("client.address", ClientAddress(remote)))
		}
		_, known := s.addresses.Get(o.Client)
		o.sharer.Store(&sharer{o.Client, known})
		o.Lease = s.budget.Lease(o.Client)
		w.Header()["X-Request-Id"] = []string{o.ID}
		w.Header()["X-Content-Type-Options"] = noSniff
		ctx := context.WithValue(r.Context(), observationKey{}, o)
		ctx, o.trips = db.WithCounter(ctx)
		if o.encrypted && r.TLS == nil {
			ctx = session.Encrypted(ctx)
		}
		r = r.WithContext(ctx)
		r.RemoteAddr = remote
		if r.ContentLength != 0 {
			r.Body = countedBody{r.Body, o, limit.ProgressOf(ctx)}
			// If the handler doesn't read the whole body, net/http reads some of the rest
			// before it sends the answer. This deadline limits how long net/http reads.
			o.sending.control.SetReadDeadline(start.Add(s.opt.BodyIdleTimeout)) //nolint:errcheck // without deadlines it waits
		}
		s.metrics.inFlight.Inc()
		defer s.finish(o, r, start)
		next.ServeHTTP(o, r)
	})
	if s.opt.Tracing {
		return otelhttp.NewHandler(h, "registry")
	}
	return h
}

// remote returns the client's address as HOST:PORT. If the connection comes from a trusted
// proxy, remote returns the address in the proxy's header, with port 0 if the header has no
// port.
func (s *Server) remote(r *http.Request, o *Observation) string {
	if s.opt.Proxies == nil {
		return r.RemoteAddr
	}
	client, disagree := s.opt.Proxies.Client(r)
	if disagree {
		s.ambiguous.Do(func() {
			s.log.WarnContext(r.Context(), "a proxy's request has X-Forwarded-For and Forwarded, which name different clients, so the proxy counts as the client: set http.forwarded_header to the one that the proxy writes",
				"proxy", r.RemoteAddr, "request_id", o.ID)
		})
	}
	if !client.IsValid() {
		return r.RemoteAddr
	}
	remote := client.String()
	if ClientAddress(remote) == ClientAddress(r.RemoteAddr) {
		return r.RemoteAddr
	}
	o.proxy = r.RemoteAddr
	return remote
}

// noSniff is the value of the header X-Content-Type-Options. It tells browsers to trust the
// Content-Type, so that they never take a blob for a web page.
var noSniff = []string{"nosniff"}

// strictTransport is the value of the header Strict-Transport-Security (RFC 6797): for a year, the
// browser opens no page of this host over http, so that nobody on the way can ask for a password
// there. Names below the host may be others', so it isn't about them.
var strictTransport = []string{"max-age=31536000"}

// finish ends a request. If the handler panicked before it sent any part of an answer, finish
// answers with 500. If the handler panicked later, finish makes net/http close the connection.
// finish also counts and logs the request. It is deferred, so that it runs after a panic too.
func (s *Server) finish(o *Observation, r *http.Request, start time.Time) {
	p := recover()
	var panicked []slog.Attr
	if p != nil && p != http.ErrAbortHandler { //nolint:errorlint // net/http compares the panic's value as well
		panicked = []slog.Attr{slog.Any("panic", p), slog.String("stack", string(debug.Stack()))}
		if o.status == 0 {
			o.Err = errors.New("panic")
			o.Header().Set("Content-Type", "application/json")
			o.Header().Del("Content-Length") // it is of the handler's answer, not of this error
			o.WriteHeader(http.StatusInternalServerError)
			o.Write(s.mounted(r).MarshalError(oci.NewError(oci.Unknown))) //nolint:errcheck // nothing is left to do
			p = nil
		} else {
			p = http.ErrAbortHandler
		}
	}
	if o.status == 0 {
		o.status = http.StatusOK
		o.sending.extend()
	}
	o.Lease.Close()
	if !o.drained && o.read != r.ContentLength { // net/http reads some of the rest before it answers
		o.sending.control.SetReadDeadline(time.Now().Add(drainTime)) //nolint:errcheck // without deadlines it waits
	}
	took := time.Since(start)
	s.metrics.inFlight.Dec()
	s.metrics.observe(o, took)
	s.logRequest(o, r, took, panicked...)
	if p != nil {
		panic(p)
	}
}

// logRequest writes the request's line in the log. A request is always logged, with the error,
// if its status is at least 500, its answer was cut off by the store, or its handler panicked.
// Other requests are logged only if the access log is on. The keys are those of OpenTelemetry's
// semantic conventions where these have one.
func (s *Server) logRequest(o *Observation, r *http.Request, took time.Duration, panicked ...slog.Attr) {
	level, message := slog.LevelInfo, "request"
	if o.status >= 500 || o.cut || panicked != nil {
		level, message = slog.LevelError, "request failed"
	} else if !s.opt.AccessLog {
		return
	}
	attrs := [16]slog.Attr{
		slog.String("http.request.method", r.Method), slog.String("url.path", r.URL.Path), slog.Int("http.response.status_code", o.status),
		slog.Int64("http.response.body.size", o.sent), slog.Int64("http.request.body.size", o.read),
		slog.Float64("http.server.request.duration", took.Seconds()),
		slog.String("client.address", ClientAddress(r.RemoteAddr)), slog.String("user_agent.original", r.UserAgent()),
		slog.String("request_id", o.ID), slog.String("account", o.Account()),
	}
	list := attrs[:10]
	if port := ClientPort(r.RemoteAddr); port != 0 { // not every proxy names it
		list = append(list, slog.Int("client.port", port))
	}
	if o.proxy != "" {
		list = append(list, slog.String("network.peer.address", ClientAddress(o.proxy)))
	}
	if id := traceID(r); id != "" {
		list = append(list, slog.String("trace_id", id))
	}
	if o.Err != nil {
		list = append(list, slog.String("error", o.Err.Error()))
	}
	s.log.LogAttrs(r.Context(), level, message, append(list, panicked...)...)
}

// traceID returns the id of the trace that the request belongs to. The id comes from the
// server's own span or, if the server makes no spans, from the client's Traceparent header.
// Without a span and without this header, traceID returns "".
func traceID(r *http.Request) string {
	span := trace.SpanContextFromContext(r.Context())
	if !span.HasTraceID() && r.Header["Traceparent"] != nil {
		span = trace.SpanContextFromContext(propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header)))
	}
	if !span.HasTraceID() {
		return ""
	}
	return span.TraceID().String()
}

// requestID returns the client's X-Request-Id if it is safe to log. Otherwise it returns a new
// random id.
func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); id != "" && len(id) <= 64 && isPlain(id) {
		return id
	}
	var b [8]byte
	v := rand.Uint64()
	for i := range b {
		b[i] = byte(v >> (8 * i))
	}
	return hex.EncodeToString(b[:])
}

func isPlain(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}

// metrics are labelled with the route's pattern, method and status.
type metrics struct {
	requests *prometheus.CounterVec
	latency  *prometheus.HistogramVec
	inFlight prometheus.Gauge
	sent     *prometheus.CounterVec
	received *prometheus.CounterVec
	trips    *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	factory := promauto.With(reg)
	m := &metrics{
		requests: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "purser_http_requests_total", Help: "Requests answered.",
		}, []string{"route", "method", "code"}),
		latency: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "purser_http_request_duration_seconds", Help: "Time from a request's header to the end of its answer.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600},
		}, []string{"route", "method"}),
		inFlight: factory.NewGauge(prometheus.GaugeOpts{
			Name: "purser_http_requests_in_flight", Help: "Requests that are being answered.",
		}),
		sent: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "purser_http_sent_bytes_total", Help: "Bytes of answers' bodies.",
		}, []string{"route"}),
		received: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "purser_http_received_bytes_total", Help: "Bytes of requests' bodies.",
		}, []string{"route"}),
		trips: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "purser_http_database_round_trips_total", Help: "Round trips to the database that requests needed.",
		}, []string{"route", "method"}),
	}
	return m
}

// anyMethod is the label of methods that no route has.
const anyMethod = "any"

// methodLabel returns the label of a request's method. It doesn't rely on the interfaces: each of
// them would have to check the method before it sets Observation.Method.
func methodLabel(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return method
	}
	return anyMethod
}

func (m *metrics) observe(o *Observation, took time.Duration) {
	method := methodLabel(o.Method)
	m.requests.WithLabelValues(o.Route, method, strconv.Itoa(o.status)).Inc()
	m.latency.WithLabelValues(o.Route, method).Observe(took.Seconds())
	if n := o.trips.Count(); n > 0 {
		m.trips.WithLabelValues(o.Route, method).Add(float64(n))
	}
	if o.sent > 0 {
		m.sent.WithLabelValues(o.Route).Add(float64(o.sent))
	}
	if o.read > 0 {
		m.received.WithLabelValues(o.Route).Add(float64(o.read))
	}
}
