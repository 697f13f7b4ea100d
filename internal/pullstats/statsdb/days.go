package statsdb

import (
	"cmp"
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/db"
)

// This file and the statements of sums.go write the history of pulls: how many pulls there
// were on each day. The transaction that adds pulls to the statistics adds them to the history,
// so no pull is in one of them alone, or twice in either.
//
// A pull of a manifest is one pull of its repository, of its namespace and of the registry,
// whether the client named a tag or a digest. So these sums are made of the sums of manifests.
// The pulls by tag are among them already.

// DayPulls is the number of pulls on one day.
type DayPulls struct {
	Day   time.Time // its first moment, in UTC
	Pulls int64
}

// DayOf returns the first moment of the day of the time t, in UTC.
func DayOf(t time.Time) time.Time { return t.UTC().Truncate(24 * time.Hour) }

// addDay adds n pulls of a day to p.days. There is mostly one day, at most a few.
func (p *Sum) addDay(day time.Time, n int64) {
	for i := range p.days {
		switch have := &p.days[i]; {
		case have.Day.Equal(day):
			have.Pulls += n
			return
		case have.Day.Before(day):
			p.days = slices.Insert(p.days, i, DayPulls{day, n})
			return
		}
	}
	p.days = append(p.days, DayPulls{day, n})
}

// daySums has the pulls of a batch by day: of each repository, of each namespace, and of the
// registry. Each list is in the order of its keys.
type daySums struct {
	repositories, namespaces, registry []daySum
}

// daySum is the pulls of a repository or a namespace (id), or of the registry, on one day.
type daySum struct {
	dayKey
	pulls     int64
	namespace int64 // of the repository
}

type dayKey struct {
	day time.Time
	id  int64
}

func (s daySums) empty() bool { return len(s.registry) == 0 }

// sumDays adds up the pulls of manifests by day. `of` has the namespaces of the repositories.
func sumDays(manifests []Sum, of Living) (s daySums) {
	repositories, namespaces, registry := map[dayKey]int64{}, map[dayKey]int64{}, map[dayKey]int64{}
	for _, m := range manifests {
		for _, d := range m.days {
			repositories[dayKey{d.Day, m.Repository}] += d.Pulls
			namespaces[dayKey{d.Day, of[m.Repository]}] += d.Pulls
			registry[dayKey{d.Day, 0}] += d.Pulls
		}
	}
	s.repositories, s.namespaces, s.registry = orderedDays(repositories), orderedDays(namespaces), orderedDays(registry)
	for i := range s.repositories {
		s.repositories[i].namespace = of[s.repositories[i].id]
	}
	return s
}

func orderedDays(sums map[dayKey]int64) []daySum {
	list := make([]daySum, 0, len(sums))
	for k, n := range sums {
		list = append(list, daySum{dayKey: k, pulls: n})
	}
	slices.SortFunc(list, func(a, b daySum) int { return cmp.Or(cmp.Compare(a.id, b.id), a.day.Compare(b.day)) })
	return list
}

// upsertDays adds the sums of days to the history of repositories, of namespaces and of the
// registry.
const upsertDays = `
	WITH of_repositories AS (
		INSERT INTO repositorypullhistory AS h (repository_id, day, namespace_id, pulls)
		SELECT * FROM unnest(@repositories::bigint[], @repository_days::date[], @repository_namespaces::bigint[], @repository_pulls::bigint[])
		ON CONFLICT (repository_id, day) DO UPDATE SET pulls = h.pulls + EXCLUDED.pulls
	), of_namespaces AS (
		INSERT INTO namespacepullhistory AS h (namespace_id, day, pulls)
		SELECT * FROM unnest(@namespaces::bigint[], @namespace_days::date[], @namespace_pulls::bigint[])
		ON CONFLICT (namespace_id, day) DO UPDATE SET pulls = h.pulls + EXCLUDED.pulls
	)
	INSERT INTO pullhistory AS h (day, pulls)
	SELECT * FROM unnest(@days::date[], @pulls::bigint[])
	ON CONFLICT (day) DO UPDATE SET pulls = h.pulls + EXCLUDED.pulls`

// arguments returns the arguments of upsertDays.
func (s daySums) arguments() db.Args {
	split := func(list []daySum) (ids []int64, days []time.Time, namespaces, pulls []int64) {
		for _, d := range list {
			ids, days, namespaces, pulls = append(ids, d.id), append(days, d.day), append(namespaces, d.namespace), append(pulls, d.pulls)
		}
		return ids, days, namespaces, pulls
	}
	args := db.Args{}
	args["repositories"], args["repository_days"], args["repository_namespaces"], args["repository_pulls"] = split(s.repositories)
	args["namespaces"], args["namespace_days"], _, args["namespace_pulls"] = split(s.namespaces)
	_, args["days"], _, args["pulls"] = split(s.registry)
	return args
}
