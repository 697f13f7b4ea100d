package serve

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/auth/throttle"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// descriptorsOfConnections is how many file descriptors are reserved per connection:
	// one for its socket, one for the file or socket from which a blob is read or to which
	// it is written, and one as the connection's share of everything else.
	descriptorsOfConnections = 3
)

// limits are the limits on what clients may use of this process: connections, requests, and
// memory for request bodies.
type limits struct {
	cfg         *config.Config
	connections int // in total, 0: no limit
	ofClient    int
	// clientRate and accountRate limit the rates of requests at all replicas; shareRates sets them.
	clientRate, accountRate *throttle.Rates
	metrics                 *limit.Metrics
	log                     *slog.Logger
}

func newLimits(cfg *config.Config, reg prometheus.Registerer, log *slog.Logger) (*limits, error) {
	metrics := limit.NewMetrics(reg)
	l := &limits{cfg: cfg, metrics: metrics, log: log}
	l.connections, l.ofClient = connectionLimits(cfg.HTTP.MaxConnections, cfg.HTTP.MaxClientConnections, descriptorLimit())
	if l.connections < cfg.HTTP.MaxConnections {
		// The default of http.max_connections exceeds what most machines allow a process.
		// That is no mistake of the operator, so only a limit that the operator has set
		// causes a warning.
		level := slog.LevelDebug
		if cfg.Source("http.max_connections") != "default" {
			level = slog.LevelWarn
		}
		log.Log(context.Background(), level, "fewer connections than http.max_connections are accepted, since this process may open few files: raise the limit (ulimit -n, LimitNOFILE)",
			"connections", l.connections, "files", descriptorLimit())
	}
	return l, nil
}

// connectionLimits lowers the configured limits on connections, in total (`most`) and per
// client (`ofClient`), and returns both. The total is lowered to the number of
// connections that the process can serve with `descriptors` file descriptors; with 0
// descriptors (unknown) it isn't lowered. If the limit per client then exceeds the total,
// it becomes half of the total. A limit of 0 means no limit, and stays 0.
func connectionLimits(most, ofClient, descriptors int) (int, int) {
	if possible := descriptors / descriptorsOfConnections; most > possible && possible > 0 {
		most = possible
	}
	if most > 0 && ofClient > most {
		ofClient = (most + 1) / 2
	}
	return most, ofClient
}

// proxies returns the proxies of the setting http.trusted_proxies, from which Purser
// accepts a header that names the client.
func proxies(h config.HTTP) *limit.Proxies {
	header := map[string]limit.ForwardedHeader{"x-forwarded-for": limit.XForwardedFor, "forwarded": limit.Forwarded}
	return limit.NewProxies(h.TrustedProxies, header[h.ForwardedHeader])
}

// shareRates makes the limits on rates of requests, which all replicas share in the database.
// Their methods Run must run in the background.
func (l *limits) shareRates(d *db.DB, loops *worker.Metrics) {
	o := throttle.RatesOptions{Of: throttle.OfAddresses, PerSecond: float64(l.cfg.HTTP.MaxClientRequestRate), DB: d, Log: l.log, Metrics: loops}
	l.clientRate = throttle.NewRates(o)
	o.Of, o.PerSecond = throttle.OfAccounts, float64(l.cfg.HTTP.MaxAccountRequestRate)
	l.accountRate = throttle.NewRates(o)
}

// server returns the limits on requests, for the options of server.New.
func (l *limits) server() server.Limits {
	h := l.cfg.HTTP
	return server.Limits{
		Memory:   limit.BudgetOptions{Total: h.BodyMemory, Share: h.BodyMemoryShare, Wait: h.BodyMemoryWait},
		Requests: l.connections, ClientRequests: l.ofClient,
		ClientRate: l.clientRate, AccountRate: l.accountRate,
		MinBodyRate: h.MinBodyRate, MinBodyRateWindow: h.MinBodyRateWindow,
		AnswerIdleTimeout: h.AnswerIdleTimeout, Metrics: l.metrics,
	}
}
