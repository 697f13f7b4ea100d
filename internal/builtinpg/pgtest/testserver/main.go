// Command testserver starts a PostgreSQL server for the tests of another module, prints the DSN of its
// database "postgres" on a line, and stops the server when its standard input ends. So the server ends
// with the process that has the other end of the pipe, however that process ends.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
)

func main() {
	// An interrupt from the terminal goes to the tests too, which then close the pipe.
	signal.Ignore(os.Interrupt)
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "testserver:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	server, dir, err := pgtest.Start(ctx)
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	if err != nil {
		return fmt.Errorf("starting PostgreSQL: %w", err)
	}
	if _, err = fmt.Println(server.DSN("postgres")); err == nil {
		_, err = io.Copy(io.Discard, os.Stdin)
	}
	ctx, cancel = context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if stopped := server.Stop(ctx); err == nil {
		err = stopped
	}
	return err
}
