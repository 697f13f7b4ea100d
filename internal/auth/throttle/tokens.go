package throttle

import (
	"context"
	"strings"
	"time"
)

// ReserveToken is Reserve for a signed token of another issuer, by which a robot logs in. The
// robot's name is NAMESPACE+NAME.
//
// Nobody guesses a signed token. Tokens are limited because checking them takes time, of which the
// rules of a namespace decide how much. So failures count for the robot and its namespace at the
// address, with the numbers of an account and of an address. They don't count for the address
// itself, and those of the address don't count for them: pipelines often share an address with
// people and with pipelines of others, who enter wrong passwords. A robot that has logged in from
// the address lately has a bucket of its own there, as an account has. The robots of a namespace
// together have as many of these as an account.
func (f *Failures) ReserveToken(ctx context.Context, robot, address string) (attempt *Attempt, wait time.Duration, err error) {
	address = Address(address)
	namespace, _, _ := strings.Cut(robot, "+")
	return f.reserve(ctx, pairOf(namespace+"+", robot, address, "token"),
		f.bucket('f', f.opt.AccountBurst, f.opt.AccountEvery, robot, address),
		f.bucket('n', f.opt.AddressBurst, f.opt.AddressEvery, namespace, address))
}

// LogToken says whether the refusal of a token from the address may be written to the audit log.
// Names of robots can be invented, so ReserveToken doesn't bound the number of refusals.
func (f *Failures) LogToken(ctx context.Context, address string) (bool, error) {
	_, wait, err := f.reserve(ctx, nil, f.bucket('g', f.opt.AddressBurst, f.opt.AddressEvery, Address(address)))
	return wait == 0, err
}
