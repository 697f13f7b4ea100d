package command

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

// numberFlag is a flag whose value is an integer within bounds. It implements
// pflag.Value.
type numberFlag struct {
	p        *int
	min, max int
}

// Number returns a flag that sets the variable `p` to an integer from `min` to `max`.
func Number(p *int, min, max int) pflag.Value { return numberFlag{p, min, max} }

func (v numberFlag) String() string { return strconv.Itoa(*v.p) }

func (v numberFlag) Type() string { return "int" }

func (v numberFlag) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < v.min || n > v.max {
		return fmt.Errorf("use a whole number from %d to %d", v.min, v.max)
	}
	*v.p = n
	return nil
}

// CompletionTime limits how long a shell waits for completions.
const CompletionTime = time.Second

// MaxListed is the largest --limit.
const MaxListed = 1_000_000_000

// flagError rewords an error of pflag about a bad value, so that it names the flag, the
// value and the possible values. Other errors are returned unchanged.
func flagError(err error) error {
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	cause := bad.Unwrap()
	switch bad.GetFlag().Value.Type() {
	case "bool":
		cause = errors.New("write true or false")
	case "duration":
		cause = errors.New("write a duration such as 90s, 30m or 6h")
	}
	return fmt.Errorf("--%s: %q isn't possible: %w", bad.GetFlag().Name, bad.GetValue(), cause)
}
