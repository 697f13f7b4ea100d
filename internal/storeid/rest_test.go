package storeid

import (
	"testing"
	"time"
)

// TestLooksRest checks the pause between two of Run's checks: a directory must be checked each
// second only while Wrong is being called.
func TestLooksRest(t *testing.T) {
	t.Parallel()
	began := time.Now().Add(-time.Minute)
	for name, tc := range map[string]struct {
		local bool
		used  time.Duration // after began; 0: never
		want  time.Duration
	}{
		"a directory in use":               {true, time.Minute - time.Second, lookEveryLocal},
		"a directory that nobody uses":     {true, 50 * time.Second, lookEvery},
		"a directory that nobody has used": {true, 0, lookEvery},
		"a bucket":                         {false, time.Minute - time.Second, lookEvery},
	} {
		s := &Store{opt: Options{Local: tc.local}, made: began}
		s.used.Store(int64(tc.used))
		if got := s.lookAfter(); got != tc.want {
			t.Errorf("%s is looked at after %s, want %s", name, got, tc.want)
		}
	}
}
