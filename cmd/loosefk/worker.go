package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/contrib/metrics"
)

func newWorkerCommand(s *source) *cobra.Command {
	var addr string
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Clean up after deleted parents until stopped",
		Long: `Clean up after deleted parents until it gets SIGTERM or SIGINT: one run each
interval, the databases in turn. Any number of workers may run; they share out the
parent tables. It refuses to start when the definitions don't fit the databases.`,
		Example: `  loosefk worker --metrics-addr 127.0.0.1:9187
  loosefk worker --database main=$MAIN_URL --database ci=$CI_URL --map config/databases.yml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			app, err := s.open(cmd.Context())
			if err != nil {
				return err
			}
			defer app.Close()
			o := app.Options
			o.Databases, o.Definitions = app.Databases, app.Definitions
			if err := loosefk.Validate(cmd.Context(), o.Databases, o.Definitions); err != nil {
				return err
			}
			registry := prometheus.NewRegistry()
			if o.Observer, err = metrics.New(registry); err != nil {
				return err
			}
			worker, err := loosefk.New(o)
			if err != nil {
				return err
			}
			stop, err := serveMetrics(s, addr, registry)
			if err != nil {
				return err
			}
			defer stop()
			s.log.Info("cleaning up loose foreign keys", "definitions", len(o.Definitions), "databases", len(o.Databases))
			return worker.Run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&addr, "metrics-addr", "", "serve Prometheus metrics at this address under /metrics, such as :9187")
	s.tuning.AddFlags(f)
	return cmd
}

// serveMetrics serves Prometheus metrics at addr until stop is called. If addr is empty, it
// does nothing.
func serveMetrics(s *source, addr string, registry *prometheus.Registry) (stop func(), err error) {
	if addr == "" {
		return func() {}, nil
	}
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--metrics-addr: %w", err)
	}
	s.log.Info("serving metrics", "addr", listener.Addr().String())
	return serveOn(listener, mostConnections, mux, s.log), nil
}

// mostConnections limits the connections for metrics. spareConnections is how many are taken beyond
// that, each for one request.
const mostConnections, spareConnections = 512, 16

// serveOn serves a handler, which needs no bodies, with the limits that the registry's own listeners for
// metrics have, and up to `most` connections.
func serveOn(l net.Listener, most int, handler http.Handler, log *slog.Logger) (stop func()) {
	bounded := limit.Listen(l, limit.ListenerOptions{Most: most, Spare: spareConnections, Plain: true, Log: log})
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := limit.Begin(r); err != nil {
				w.Header().Set("Connection", "close")
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			if limit.IsSpare(r) || r.ContentLength != 0 {
				w.Header().Set("Connection", "close")
			}
			handler.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ConnState: bounded.ConnState, ConnContext: bounded.ConnContext,
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(bounded); !errors.Is(err, http.ErrServerClosed) {
			log.Error("serving metrics failed", "error", err)
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		server.Shutdown(ctx) //nolint:errcheck // the process ends anyway
		<-done
	}
}
