//go:build all

package e2e

import (
	"errors"
	"syscall"
	"testing"
	"time"
)

func TestPushWhoseBytesWereInFlightWorksAgain(t *testing.T) {
	beginOwn(t)
	r := startRegistry(t, options{})
	layer := randomBytes(8 << 20)
	u, err := r.API().startUpload(t.Context(), "crash/app")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.API().patch(t.Context(), u, layer[:5<<20]); err != nil {
		t.Fatal(err)
	}
	r.Kill9()
	r.Restart()
	// The registry must still have all bytes of the upload that it acknowledged before it was
	// killed.
	u.offset = 0
	if err := r.API().status(t.Context(), u); err != nil {
		t.Fatalf("asking for the upload after the restart: %v", err)
	}
	if u.offset != 5<<20 {
		t.Errorf("the upload has %d bytes after the restart, want the %d acknowledged", u.offset, 5<<20)
	}
	if err := r.API().finish(t.Context(), u, layer[u.offset:], descriptor("", layer).Digest); err != nil {
		t.Errorf("finishing the upload after the restart: %v", err)
	}
	d, err := r.API().pushImage(t.Context(), "crash/app", "v1", layer)
	if err != nil {
		t.Fatalf("pushing the image: %v", err)
	}
	r.API().checkWhole(t, "crash/app", "v1", d.String())
}

func TestPostgresRestartedUnderLoad(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"shut down": syscall.SIGINT, "crashed": syscall.SIGQUIT} {
		t.Run(name, func(t *testing.T) {
			beginOwn(t)
			pg := startPostgres(t)
			r := startRegistry(t, options{env: []string{"PURSER_DATABASE_MAIN=" + pg.DSN()}})
			l := startLoad(t, r.API(), 6, func(error) bool { return false })
			for range 2 {
				l.Await(5, time.Minute)
				pg.Stop(sig)
				// Requests wait or are refused while PostgreSQL is down, for half a second.
				time.Sleep(500 * time.Millisecond)
				pg.Start()
			}
			l.Await(10, time.Minute)
			l.Check(r.API())
			eventually(t, time.Minute, func() error {
				if status := getStatus(t.Context(), "http://"+r.debug+"/readyz"); status != 200 {
					return errors.New("readyz isn't 200 after PostgreSQL came back")
				}
				return nil
			})
		})
	}
}

func TestReadinessFollowsPostgres(t *testing.T) {
	beginOwn(t)
	pg := startPostgres(t)
	r := startRegistry(t, options{env: []string{"PURSER_DATABASE_MAIN=" + pg.DSN()}})
	health := func(path string, want int) func() error {
		return func() error {
			if got := getStatus(t.Context(), "http://"+r.debug+path); got != want {
				return &statusError{method: "GET", url: path, status: got}
			}
			return nil
		}
	}
	eventually(t, time.Minute, health("/readyz", 200))
	pg.Stop(syscall.SIGINT)
	eventually(t, time.Minute, health("/readyz", 503))
	eventually(t, time.Minute, health("/healthz", 200)) // restarting Purser wouldn't help
	pg.Start()
	eventually(t, time.Minute, health("/readyz", 200))
}
