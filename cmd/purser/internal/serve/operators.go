package serve

import (
	"log/slog"
	"net/http"
	"net/http/pprof"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/server"
)

// serveOperators serves metrics, health and profiles on those of their listeners that
// listen has opened. `use` makes the access control check who wants to read names in metrics.
// The returned `stop` ends these servers and waits until they have ended.
func serveOperators(socks *sockets, h config.HTTP, reg *prometheus.Registry, ready *readiness, log *slog.Logger) (use func(*auth.Control), stop func()) {
	var stops []func()
	use = func(*auth.Control) {}
	if socks.debug != nil {
		mux := http.NewServeMux()
		metrics := newMetricsPage(reg, isLoopback(socks.debug))
		use = metrics.control.Store
		mux.Handle("GET /metrics", metrics)
		addHealth(mux, ready, isLoopback(socks.debug), log)
		addProfiles(mux, h.ProfileAddr == h.DebugAddr, h.AllowProfiles)
		stops = append(stops, serveSmall(socks.debug, underNames(hosts(socks.debug, h.DebugAddr, h), mux), isProbe, h, log))
	}
	if socks.profiles != nil {
		mux := http.NewServeMux()
		addProfiles(mux, true, h.AllowProfiles)
		stops = append(stops, serveSmall(socks.profiles, underNames(hosts(socks.profiles, h.ProfileAddr, h), mux), isProbe, h, log))
	}
	return use, func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// addHealth adds /healthz (the process lives) and /readyz (requests can succeed). The
// reasons why requests can't succeed contain addresses and user names. Therefore /readyz
// shows them only to this machine, and otherwise they are logged. `local` says that only this
// machine can reach the listener, unless a proxy passes requests on.
func addHealth(mux *http.ServeMux, ready *readiness, local bool, log *slog.Logger) {
	brief := briefly(ready, log)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if local && server.PassedOn(r) == "" {
			ready.ServeHTTP(w, r)
		} else {
			brief.ServeHTTP(w, r)
		}
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Write([]byte("ok\n")) //nolint:errcheck // the client is gone
	})
}

// briefly answers /readyz with "ok" or "not ready", and logs the reasons for "not ready"
// when they change.
func briefly(ready *readiness, log *slog.Logger) http.Handler {
	var logged atomic.Pointer[string]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, status := "ok\n", http.StatusOK
		ok, reasons := ready.answer(r.Context())
		if !ok {
			text, status = "not ready\n", http.StatusServiceUnavailable
		}
		now := string(reasons)
		if before := logged.Swap(&now); !ok && (before == nil || *before != now) {
			log.Warn("requests can't succeed", "checks", strings.TrimSpace(now))
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		w.Write([]byte(text)) //nolint:errcheck // the client is gone
	})
}

// addProfiles adds the profiles of net/http/pprof at /debug/pprof/. If `served` is false,
// the path answers 404 with the setting that enables profiles. Unless `everywhere` is set, a
// proxy can't pass them on to other machines.
func addProfiles(mux *http.ServeMux, served, everywhere bool) {
	if !served {
		mux.HandleFunc("/debug/pprof/", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "profiles aren't served here: set http.profile_addr", http.StatusNotFound)
		})
		return
	}
	for path, h := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
	} {
		mux.Handle(path, fromHere(everywhere, h))
	}
}

// fromHere refuses requests that a browser sends on behalf of a web page of another site,
// whatever their method. Such a page couldn't read a profile, but its request would make
// this process spend time on taking one. Unless `everywhere` is set, it refuses what a proxy
// passes on from elsewhere too, since profiles show what is in memory.
func fromHere(everywhere bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if sign := server.PassedOn(r); sign != "" && !everywhere {
			http.Error(w, "the request came through a proxy ("+sign+"), and profiles show what is in memory: set http.allow_profiles: true to serve them to others", http.StatusForbidden)
			return
		}
		switch r.Header.Get("Sec-Fetch-Site") {
		case "", "none", "same-origin":
			next.ServeHTTP(w, r)
		default:
			http.Error(w, "the request comes from a page of another site: open the address itself", http.StatusForbidden)
		}
	})
}

// underNames refuses requests whose host name isn't in `names`, with status 421.
func underNames(names *server.Hosts, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := names.Check(r); err != nil {
			http.Error(w, err.Error(), http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// origins returns the origin of http.external_url as browsers write it (lower case, without
// the scheme's default port), or nil if the setting is empty. Requests from pages of this
// origin count as same-origin even if a proxy passes on another host name.
func origins(h config.HTTP) []string {
	u, err := url.Parse(strings.ToLower(h.ExternalURL))
	if err != nil || h.ExternalURL == "" {
		return nil
	}
	if u.Scheme == "https" && u.Port() == "443" || u.Scheme == "http" && u.Port() == "80" {
		u.Host = strings.TrimSuffix(u.Host, ":"+u.Port())
	}
	return []string{u.Scheme + "://" + u.Host}
}
