package identity

import (
	"context"
	"errors"
)

// begin waits until a log-in may use the directory. It returns the context of the log-in, and what
// ends it.
func (d *Directory) begin(ctx context.Context) (bounded context.Context, done func(), err error) {
	bounded, cancel := context.WithTimeout(ctx, d.opt.Timeout)
	if err := d.turns.Enter(bounded); err != nil {
		defer cancel()
		return nil, nil, unavailable("waiting for other log-ins", err)
	}
	return bounded, func() { d.turns.Leave(); cancel() }, nil
}

// Find returns who would log in by a name, without a password: the service account looks whether
// there is an entry that the filter of users finds, and whether it is in one of the required groups.
// Its errors are those of Login.
func (d *Directory) Find(ctx context.Context, name string) (Identity, error) {
	if !isLoginName(name) {
		return Identity{}, refused("the name has characters that no log-in's name may have")
	}
	ctx, done, err := d.begin(ctx)
	if err != nil {
		return Identity{}, err
	}
	defer done()
	service, entry, problem, err := d.findUser(ctx, name)
	if err != nil {
		return Identity{}, err
	}
	defer d.release(service)
	if problem != "" {
		return Identity{}, refused("%s", problem)
	}
	return d.identity(ctx, service, entry)
}

// Check logs the service account in and searches for a user who isn't there. It returns an
// ErrUnavailable if that can't be done.
func (d *Directory) Check(ctx context.Context) error {
	_, err := d.Find(ctx, randomText())
	if errors.Is(err, ErrRefused) {
		return nil
	}
	return err
}

// Decoy does what Login does for a name that the directory doesn't have. It returns an ErrRefused, or
// an ErrUnavailable.
func (d *Directory) Decoy(ctx context.Context) error {
	_, err := d.Login(ctx, randomText(), randomText())
	return err
}
