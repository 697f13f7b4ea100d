package serve

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/config"
)

// announcer returns the function that announces on `out` that the server is ready.
func announcer(out io.Writer, cfg *config.Config) func(*sockets, access) error {
	return func(s *sockets, a access) error { return announce(out, cfg, s, a) }
}

// announce prints that the registry is ready, and how to use it.
func announce(out io.Writer, cfg *config.Config, socks *sockets, access access) error {
	host := reachable(socks.registry)
	text := "Purser is ready.\n  registry  " + socks.url() + "\n"
	if external := cfg.HTTP.ExternalURL; external != "" {
		text += "  external  " + external + "\n"
		_, host, _ = strings.Cut(external, "://")
	}
	text += "  web UI    " + cmp.Or(cfg.HTTP.ExternalURL, socks.url()) + "/ui/\n"
	if socks.debug != nil {
		text += "  debug     http://" + reachable(socks.debug) + "\n"
	}
	if socks.profiles != nil {
		text += "  profiles  http://" + reachable(socks.profiles) + "\n"
	}
	for _, place := range places(cfg) {
		text += "  data      " + place + "\n"
	}
	text += fmt.Sprintf("  access    %s\n", cfg.Access())
	text += access.text(host)
	if u, err := url.Parse(cmp.Or(cfg.HTTP.ExternalURL, socks.url())); err == nil && api.DockerRefuses(u) != "" {
		text += "  http      Docker uses this address over http only if its daemon.json has " + api.DockerSetting(host) + "\n"
	}
	text += fmt.Sprintf("  push      docker pull alpine && docker tag alpine %[1]s/alpine && docker push %[1]s/alpine\n", host)
	if f, ok := out.(*os.File); ok && command.IsTerminal(f) {
		text += "  stop      press Ctrl-C: requests may end first; press it twice to stop at once\n"
	}
	if _, err := io.WriteString(out, text); err != nil {
		return fmt.Errorf("telling that the registry is ready: %w", err)
	}
	return nil
}

// logOutput returns where the log goes while a line may be on the terminal.
func logOutput(line *command.ProgressLine, out io.Writer) io.Writer {
	if line.OnTerminal() {
		return line
	}
	return out
}

// showSteps shows on a terminal what the start is doing and for how long, until `hide` is called, which
// removes the line. A start that isn't on a terminal is told of by the log alone (entrance.tell).
func showSteps(line *command.ProgressLine, ready *readiness) (hide func()) {
	if line == nil || !line.OnTerminal() {
		return func() {}
	}
	began, end, ended := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			line.Tell("", fmt.Sprintf("Starting: %s (%d s)", cmp.Or(ready.waitsFor(), "the settings"), int(time.Since(began).Seconds())))
			select {
			case <-end:
				return
			case <-time.After(line.Every):
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(end)
		<-ended
		line.Clear()
	})
}

// places lists where the registry keeps its data. With the built-in PostgreSQL this is the
// data directory, and the blobs' directory or bucket unless the blobs are in the default
// place below the data directory. With a configured database it is only the blobs' directory
// or bucket, since the operator knows the database.
func places(cfg *config.Config) []string {
	var list []string
	if cfg.Database.Main == "" {
		list = append(list, cfg.DataDir)
	}
	if s := backend.StorageOf(cfg.Storage); len(list) == 0 || s.Directory() != blobsDir(cfg) {
		list = append(list, s.Place())
	}
	return list
}

// blobsDir returns the default directory of blobs.
func blobsDir(cfg *config.Config) string { return filepath.Join(cfg.DataDir, "blobs") }
