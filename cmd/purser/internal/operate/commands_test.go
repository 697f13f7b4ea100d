package operate

import (
	"bytes"
	"slices"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// purser runs a command line of this package's commands. The environment has only `environ`
// and an empty HOME.
func purser(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	src := &command.Source{Environ: append(slices.Clone(environ), "HOME="+t.TempDir())}
	code = command.Execute(t.Context(), command.NewRoot(src, Commands(src)...), args, &out, &errOut)
	return code, out.String(), errOut.String()
}
