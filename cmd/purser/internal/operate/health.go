package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

const (
	healthPath = "/readyz"
	// healthWithin is how long a server may take to say whether it can serve.
	healthWithin = 10 * time.Second
	// healthBytes limits how much of its answer is read.
	healthBytes = 64 << 10
)

func healthCommand(src *command.Source) *cobra.Command {
	return &cobra.Command{
		Use:   "health [URL]",
		Short: "Ask a running server whether it can serve",
		Long: "Ask the server of this configuration whether it can serve (" + healthPath + " at http.debug_addr), and print what it\n" +
			"says. With URL, such as https://registry.example.com, ask the registry there as clients do, without logging\n" +
			"in. For health checks of containers and service managers. The exit code is 0 if the server can serve, and 1\n" +
			"if it can't or doesn't answer within 10 seconds.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), healthWithin)
			defer cancel()
			if len(args) > 0 {
				return askRegistry(ctx, cmd.OutOrStdout(), args[0])
			}
			cfg, err := src.LoadAndTell(cmd)
			if err != nil {
				return err
			}
			if cfg.HTTP.DebugAddr == "" {
				return errors.New("http.debug_addr is off, where servers say whether they can serve: set it, or name the registry's URL")
			}
			return askServer(ctx, cmd.OutOrStdout(), cfg.HTTP.DebugAddr)
		},
	}
}

// askServer asks the server that listens for operators at an address of this machine.
func askServer(ctx context.Context, out io.Writer, addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("http.debug_addr: %w", err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	status, text, err := ask(ctx, "http://"+net.JoinHostPort(host, port)+healthPath)
	if err != nil {
		return fmt.Errorf("no server answers at http.debug_addr (%s): %w", addr, err)
	}
	if _, err := io.WriteString(out, text); err != nil {
		return err
	}
	if status.code != http.StatusOK {
		return fmt.Errorf("the server can't serve: it answers %s with status %d", healthPath, status.code)
	}
	return nil
}

// askRegistry asks a registry whether it has the API of registries. It may want clients to log in.
func askRegistry(ctx context.Context, out io.Writer, url string) error {
	if !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") {
		return command.Usagef("URL: %q doesn't begin with http:// or https://", url)
	}
	status, _, err := ask(ctx, strings.TrimSuffix(url, "/")+"/v2/")
	switch {
	case err != nil:
		return fmt.Errorf("no registry answers at %s: %w", url, err)
	case !status.registry || status.code != http.StatusOK && status.code != http.StatusUnauthorized:
		return fmt.Errorf("%s answers /v2/ with status %d, and not as a registry does", url, status.code)
	}
	_, err = io.WriteString(out, "ok\n")
	return err
}

// answered is the head of an answer.
type answered struct {
	code     int
	registry bool // it has the header of the registry's API
}

// ask sends a GET without following redirects.
func ask(ctx context.Context, url string) (answered, string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return answered{}, "", err
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(r)
	if err != nil {
		return answered{}, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, healthBytes))
	if err != nil {
		return answered{}, "", err
	}
	return answered{res.StatusCode, res.Header.Get("Docker-Distribution-Api-Version") != ""}, string(text), nil
}
