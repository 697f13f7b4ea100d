package password

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"go.uber.org/goleak"
)

// workVariable makes this program do what a process of HasherOptions.Command does, up to the task
// with the number in the variable: in the middle of that one it fails.
const workVariable = "TEST_HASH_PASSWORDS"

func TestMain(m *testing.M) {
	if n, err := strconv.Atoi(os.Getenv(workVariable)); err == nil {
		if err := Work(os.Stdin, &failing{n}); err != nil {
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// failing is the standard output, which fails in the middle of the nth write.
type failing struct{ left int }

func (f *failing) Write(p []byte) (int, error) {
	if f.left--; f.left == 0 {
		n, _ := os.Stdout.Write(p[:len(p)/2])
		return n, errors.New("the process fails")
	}
	return os.Stdout.Write(p)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
