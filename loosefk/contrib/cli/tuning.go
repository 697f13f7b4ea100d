package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/purser-registry/purser/loosefk"
)

// Tuning provides flags for those of the worker's options that are numbers and durations.
// Each flag also has an environment variable: LOOSEFK_MAX_DELETES for --max-deletes.
type Tuning struct {
	// Getenv returns the value of an environment variable. Default os.Getenv.
	Getenv func(string) string

	options loosefk.Options
	sets    []*pflag.FlagSet // the flag sets of all commands, of which one is parsed
}

// AddFlags adds the flags for the worker's options to a command's flags.
func (t *Tuning) AddFlags(f *pflag.FlagSet) {
	t.sets = append(t.sets, f)
	o := &t.options
	f.DurationVar(&o.Interval, "interval", 0, "time between runs (default 1m)")
	f.DurationVar(&o.MaxRuntime, "max-runtime", 0, "longest run (default 30s)")
	f.IntVar(&o.MaxDeletes, "max-deletes", 0, "most rows that a run deletes (default 100000)")
	f.IntVar(&o.MaxUpdates, "max-updates", 0, "most rows that a run updates (default 50000)")
	f.IntVar(&o.Batch, "batch", 0, "records that are processed together (default 500)")
	f.IntVar(&o.DeleteLimit, "delete-limit", 0, "most rows that a statement deletes (default 1000)")
	f.IntVar(&o.UpdateLimit, "update-limit", 0, "most rows that a statement updates (default 500)")
	f.IntVar(&o.UrgentRecords, "urgent-records", 0, "records of the urgent lane, for each parent table and run (default 100)")
	f.DurationVar(&o.LockTimeout, "lock-timeout", 0, "longest wait for a lock; keep it below deadlock_timeout (default 200ms)")
	f.DurationVar(&o.StatementTimeout, "statement-timeout", 0, "longest statement (default 10s)")
	f.IntVar(&o.MaxAttempts, "max-attempts", 0, "runs that may leave a record unfinished before it waits (default 3)")
	f.DurationVar(&o.RescheduleAfter, "reschedule-after", 0, "how long an unfinished record waits then (default 10m)")
	f.DurationVar(&o.SecondLook, "second-look", 0, "when children in another database are looked for again; -1s: never (default 1h)")
	f.DurationVar(&o.PartitionAge, "partition-age", 0, "age of the newest partition's first record at which the next partition is made (default 24h)")
	f.DurationVar(&o.Retention, "retention", 0, "how long detached partitions are kept (default 168h)")
}

// Options returns the worker's options that flags and environment variables set; the others
// are 0. If a value is wrong, the error names its flag or variable.
func (t *Tuning) Options() (loosefk.Options, error) {
	getenv := t.Getenv
	if getenv == nil {
		getenv = os.Getenv
	}
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	parsed := Tuning{}
	parsed.AddFlags(all)
	var errs []error
	set := func(name, value, where string) {
		switch err := all.Set(name, value); {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s is %q: want %s", where, value, map[string]string{
				"duration": "a time such as 90s or 10m", "int": "a whole number"}[all.Lookup(name).Value.Type()]))
		case strings.Trim(all.Lookup(name).Value.String(), "0s") == "":
			errs = append(errs, fmt.Errorf("%s is 0: leave it out for the default", where))
		}
	}
	all.VisitAll(func(f *pflag.Flag) {
		variable := "LOOSEFK_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		for _, s := range t.sets {
			if s.Changed(f.Name) {
				set(f.Name, s.Lookup(f.Name).Value.String(), "--"+f.Name)
				return
			}
		}
		if value := getenv(variable); value != "" {
			set(f.Name, value, variable)
		}
	})
	if err := errors.Join(append(errs, parsed.options.Check())...); err != nil {
		return loosefk.Options{}, &exit{exitUsage, err}
	}
	return parsed.options, nil
}
