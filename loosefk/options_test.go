package loosefk

import (
	"strings"
	"testing"
	"time"
)

// If numbers or durations in Options are out of their bounds, New must fail with an error
// that names each such option.
func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	dbs := Databases{{Name: "main", Pool: newPool(t)}}
	wrong := Options{
		Databases: dbs, Interval: -time.Second, MaxDeletes: -1, MaxUpdates: -1, MaxRuntime: -1, Batch: -5, DeleteLimit: 2_000_000,
		UpdateLimit: -1, UrgentRecords: -1, LockTimeout: -1, StatementTimeout: time.Microsecond, MaxAttempts: 40_000,
		RescheduleAfter: -time.Minute, SecondLook: time.Nanosecond, PartitionAge: -1, Retention: -1,
	}
	_, err := New(wrong)
	if err == nil || strings.Count(err.Error(), "it has to be from") != 15 {
		t.Errorf("it says %v", err)
	}
	for _, want := range []string{"interval is -1s: it has to be from 1ms to 24h0m0s", "batch is -5: it has to be from 1 to 100000", "second look is 1ns: it has to be from 1ms to 720h0m0s, or less than 0 for never"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("it says %v, want %s", err, want)
		}
	}
	for want, o := range map[string]Options{
		"":                       {SecondLook: -1},
		"there is no database":   {Databases: Databases{}},
		"want async_delete":      {Definitions: Definitions{{Child: "a", Parent: "b", Column: "c", OnDelete: "cascade"}}},
		"the delete limit is -1": {Definitions: Definitions{{Child: "a", Parent: "b", Column: "c", OnDelete: AsyncDelete, DeleteLimit: -1}}},
	} {
		if o.Databases == nil {
			o.Databases = dbs
		}
		if _, err := New(o); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}
