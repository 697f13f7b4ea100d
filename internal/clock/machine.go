package clock

import "time"

// machine is what the guard asks of the machine that it runs on. Tests replace its functions.
type machine struct {
	// boot identifies the time since the machine was started: up goes on in it. "": unknown.
	boot string
	// up is how long the machine has run, with the time in which it slept. No setting of a clock
	// changes it.
	up func() time.Duration
	// now is the clock of this machine.
	now func() time.Time
	// synchronized says whether a time server keeps the clock.
	synchronized func() bool
}
