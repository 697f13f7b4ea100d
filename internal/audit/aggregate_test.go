package audit

import (
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// Aggregate must count entries by day and kind. If it would have to read more entries than
// its bound, it must return no counts, and false as the result `all`.
func TestAggregate(t *testing.T) {
	t.Parallel()
	l := New(dbtest.New(t))
	day := time.Date(2026, 3, 5, 0, 0, 0, 0, time.UTC)
	entry := func(after time.Duration, kind Kind, tag string) Entry {
		return Entry{Time: day.Add(after), Kind: kind, Repository: "app/web", Tag: tag}
	}
	err := l.Append(t.Context(), entry(0, PushRepo, "a"), entry(24*time.Hour-1, PushRepo, "b"), entry(24*time.Hour, PushRepo, "c"),
		entry(time.Hour, DeleteTag, "a"), Entry{Time: day, Kind: PushRepo, Repository: "other/web", Tag: "a"})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		filter Filter
		bound  int
		want   []DayCount
		all    bool
	}{
		{Filter{Namespace: "app"}, 4, []DayCount{{day, DeleteTag, 1}, {day, PushRepo, 2}, {day.AddDate(0, 0, 1), PushRepo, 1}}, true},
		{Filter{Namespace: "app"}, 3, nil, false},
		{Filter{Kinds: []Kind{PushRepo, DeleteTag}}, 9, []DayCount{{day, DeleteTag, 1}, {day, PushRepo, 3}, {day.AddDate(0, 0, 1), PushRepo, 1}}, true},
		{Filter{Kinds: []Kind{PushRepo, DeleteTag, PushRepo}, From: day}, 5, []DayCount{{day, DeleteTag, 1}, {day, PushRepo, 3}, {day.AddDate(0, 0, 1), PushRepo, 1}}, true},
		{Filter{Kinds: []Kind{PushRepo, DeleteTag}, From: day}, 4, nil, false},
		{Filter{Kinds: []Kind{PushRepo, DeleteTag}, From: day}, 1, nil, false},
		{Filter{Kinds: []Kind{PushRepo}, From: day.Add(time.Minute), To: day.AddDate(0, 0, 1)}, 9, []DayCount{{day, PushRepo, 1}}, true},
		{Filter{Kinds: []Kind{PushRepo}, From: day, To: day.Add(time.Minute)}, 9, []DayCount{{day, PushRepo, 2}}, true},
		{Filter{Kinds: []Kind{DeleteTag}, From: day.AddDate(0, 0, 1)}, 9, nil, true},
		{Filter{Kinds: []Kind{PushRepo}, From: day.AddDate(-3, 0, 0)}, 9, []DayCount{{day, PushRepo, 3}, {day.AddDate(0, 0, 1), PushRepo, 1}}, true},
		{Filter{Namespace: "app", Tag: "a", To: day.Add(time.Minute)}, 9, []DayCount{{day, PushRepo, 1}}, true},
		{Filter{Repository: "none/web"}, 9, nil, true},
	} {
		got, all, err := l.aggregate(t.Context(), test.filter, test.bound)
		if err != nil || all != test.all || len(got) != len(test.want) {
			t.Errorf("%+v: %v %v %v, want %v", test.filter, got, all, err, test.want)
			continue
		}
		for i := range got {
			if !got[i].Day.Equal(test.want[i].Day) || got[i].Kind != test.want[i].Kind || got[i].Count != test.want[i].Count {
				t.Errorf("%+v: %v, want %v", test.filter, got, test.want)
			}
		}
	}
}
