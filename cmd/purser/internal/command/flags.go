package command

import (
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
