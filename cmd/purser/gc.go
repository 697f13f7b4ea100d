package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
)

func gcCommand(src *source) *cobra.Command {
	return group("gc", "Look after garbage collection",
		gcStatusCommand(src), gcRunCommand(src), gcExplainCommand(src), gcRetryCommand(src))
}

// withMetadata runs fn on the metadata database and its catalog, also while a server runs.
// The caches of running servers are notified of fn's changes, and the audit log attributes
// them to this command.
func (s *source) withMetadata(cmd *cobra.Command, fn func(ctx context.Context, cfg *config.Config, metadata *db.DB, c *catalog.Catalog, log *audit.Log) error) error {
	return s.withDSN(cmd, func(ctx context.Context, cfg *config.Config, dsn string) error {
		if err := forCommand(checkMetadata(ctx, dsn)); err != nil {
			return err
		}
		log, err := newLogger(cmd.ErrOrStderr(), cfg.Log)
		if err != nil {
			return err
		}
		metadata, err := openReviews(ctx, cfg, dsn, log)
		if err != nil {
			return err
		}
		defer metadata.Close()
		return fn(byCommand(ctx, cmd), cfg, metadata, catalog.New(catalog.Options{
			DB: metadata, CacheOff: true, MaxRequest: cfg.HTTP.MaxRequestTime, Log: log,
		}), audit.New(metadata))
	})
}

// withCollector is like withMetadata, for commands that need garbage collection.
func (s *source) withCollector(cmd *cobra.Command, fn func(ctx context.Context, cfg *config.Config, c *gc.Collector, metadata *db.DB, log *audit.Log) error) error {
	return s.withMetadata(cmd, func(ctx context.Context, cfg *config.Config, metadata *db.DB, c *catalog.Catalog, log *audit.Log) error {
		return fn(ctx, cfg, collector(cfg, c, metadata, metadata, nil), metadata, log)
	})
}

// collector makes the collector of garbage, as the settings say.
func collector(cfg *config.Config, c *catalog.Catalog, metadata, reviews *db.DB, log *slog.Logger) *gc.Collector {
	return gc.New(gc.Options{
		Catalog: c, DB: metadata, Reviews: reviews, KeepDoomed: cfg.GC.KeepDoomed, Log: log,
	})
}

// format is a command's output format.
type format string

const (
	formatText format = "text"
	formatJSON format = "json"
)

// String implements pflag.Value.
func (f *format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *format) Type() string { return "FORMAT" }

// Set implements pflag.Value.
func (f *format) Set(text string) error {
	switch format(text) {
	case formatText, formatJSON:
		*f = format(text)
		return nil
	}
	return errors.New("write text or json")
}

// addFormat adds the flag --output (-o).
func addFormat(cmd *cobra.Command) *format {
	f := formatText
	cmd.Flags().VarP(&f, "output", "o", "print `FORMAT`: text or json")
	return &f
}

// print writes v as JSON, or calls text.
func (f format) print(w io.Writer, v any, text func(w io.Writer) error) error {
	if f == formatText {
		return text(w)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("printing JSON: %w", err)
	}
	return nil
}
