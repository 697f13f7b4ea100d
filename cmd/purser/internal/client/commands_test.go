package client

import (
	"bytes"
	"context"
	"io"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

// execute runs a command line of this package's commands, and returns its exit code.
func execute(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	src := &command.Source{Environ: environ}
	return command.Execute(ctx, command.NewRoot(src, Commands(src)...), args, stdout, stderr)
}

// purser runs a command line with an empty environment.
func purser(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = execute(t.Context(), args, nil, &out, &errOut)
	return code, out.String(), errOut.String()
}
