package judge_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
)

// contentOf returns what a manifest stores in tests that give it no other content: one to three
// bytes of its own, and two blobs that other manifests share.
func contentOf(manifest int64) judge.Content {
	return judge.Content{
		Manifest: manifest, Size: 1 + manifest%3,
		Blobs: []string{fmt.Sprint("a", manifest%4), fmt.Sprint("b", manifest%7)},
	}
}

// blobSize returns the size of a blob of contentOf: one byte to seven.
func blobSize(name string) int64 { return int64(name[1]-'0') + 1 }

// withContent lets a repository tell what its manifests store, by contentOf. It checks that Evaluate
// doesn't ask for too much at a time.
func withContent(r judge.Repository, references []judge.Reference) judge.Repository {
	check := func(n int) {
		if n > 1000 {
			panic(fmt.Sprint(n, " in one call"))
		}
	}
	r.Kept = func(manifests []int64) (list []judge.Reference, _ error) {
		check(len(manifests))
		for _, one := range references {
			if slices.Contains(manifests, one.Parent) {
				list = append(list, one)
			}
		}
		return list, nil
	}
	r.Contents = func(manifests []int64) (list []judge.Content, _ error) {
		check(len(manifests))
		for _, id := range manifests {
			list = append(list, contentOf(id))
		}
		return list, nil
	}
	r.BlobSizes = func(blobs []string) (map[string]int64, error) {
		check(len(blobs))
		sizes := map[string]int64{}
		for _, name := range blobs {
			sizes[name] = blobSize(name)
		}
		return sizes, nil
	}
	return r
}

func lastUse(one judge.Tag) time.Time {
	latest := one.Created
	for _, use := range []time.Time{one.Pulled, one.ManifestPulled, one.Checked} {
		if use.After(latest) {
			latest = use
		}
	}
	return latest
}

func lastUsedFirst(a, b judge.Tag) int {
	return cmp.Or(lastUse(b).Compare(lastUse(a)), cmp.Compare(b.Name, a.Name))
}

// weighed returns the tags that max_bytes policy i counts, the most recently used first: none that
// was pushed or used more than five minutes in the future.
func (s scene) weighed(i int) []judge.Tag {
	p := s.rules.Policies[i].Policy
	list := slices.DeleteFunc(slices.Clone(s.tags), func(one judge.Tag) bool {
		if attached(one) || one.Exempt.Has(i) || !s.considers(i, one) || orphan(one) && p.RemoveOrphans || lastUse(one).Before(s.rules.Pulls.Since) ||
			lastUse(one).After(ago(-5*time.Minute)) {
			return true
		}
		for other := range s.rules.Policies {
			if s.first(other, one) {
				return true
			}
		}
		return false
	})
	slices.SortFunc(list, lastUsedFirst)
	return list
}

// bytes returns how much the tags store, with what belongs to them.
func (s scene) bytes(tags []judge.Tag) (sum int64) {
	manifests, blobs := map[int64]bool{}, map[string]bool{}
	var add func(id int64)
	add = func(id int64) {
		if manifests[id] {
			return
		}
		manifests[id] = true
		c := contentOf(id)
		sum += c.Size
		for _, name := range c.Blobs {
			if !blobs[name] {
				sum += blobSize(name)
			}
			blobs[name] = true
		}
		for _, r := range s.references {
			if r.Parent == id {
				add(r.Child)
			}
		}
		for _, one := range s.tags {
			if attached(one) && one.Image == id {
				add(one.Manifest)
			}
		}
	}
	for _, one := range tags {
		add(one.Manifest)
	}
	return sum
}

// beyondBytes returns the tags that max_bytes policy i selects, by the definition.
func (s scene) beyondBytes(i int) []judge.Tag {
	p, weighed := s.rules.Policies[i].Policy, s.weighed(i)
	limit, err := policy.ParseSize(p.Value().(string))
	if err != nil {
		panic(err)
	}
	stay := len(weighed)
	for stay > 0 && policy.Size(s.bytes(weighed[:stay])) > limit {
		stay--
	}
	return slices.DeleteFunc(s.considered(i), func(one judge.Tag) bool {
		if orphan(one) && p.RemoveOrphans {
			return !s.first(i, one)
		}
		return stay == len(weighed) || lastUsedFirst(one, weighed[stay]) < 0
	})
}

// TestBytesStayWithin: what a max_bytes policy leaves of the tags that it counts must fit into its
// bytes, and not even the most recently used of those that go would fit too. If it is the only
// policy, all tags that stay were used more recently than those that go.
func TestBytesStayWithin(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		limit := rapid.Int64Range(1, 60).Draw(t, "bytes alone")
		s.rules.Policies = rules(t, fmt.Sprintf("max_bytes:%d:!^x", limit)).Policies
		s.rules.Protection, s.rules.Pulls = nil, judge.PullRecord{Since: ago(1000 * time.Hour)}
		v, counted := s.evaluate(t), s.weighed(0)
		stays := slices.IndexFunc(counted, func(one judge.Tag) bool { return v.Decide(one).Delete })
		if stays < 0 {
			stays = len(counted)
		}
		switch {
		case s.bytes(counted[:stays]) > limit:
			t.Fatalf("%d bytes stay, and %d may", s.bytes(counted[:stays]), limit)
		case stays < len(counted) && s.bytes(counted[:stays+1]) <= limit:
			t.Fatalf("%s goes and would fit: %d bytes of %d", counted[stays].Name, s.bytes(counted[:stays+1]), limit)
		case slices.ContainsFunc(counted[stays:], func(one judge.Tag) bool { return !v.Decide(one).Delete }):
			t.Fatalf("of %v some go after %d, and some stay", counted, stays)
		}
	})
}

// TestMoreBytesKeepMore: with more bytes, a max_bytes policy must not select a tag that it doesn't
// select with fewer. The same is true for pull statistics that began later.
func TestMoreBytesKeepMore(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		at := len(s.rules.Policies)
		bytes := rapid.IntRange(1, 50).Draw(t, "fewer")
		with := func(bytes int) scene {
			more := s
			more.rules.Policies = slices.Concat(s.rules.Policies, rules(t, fmt.Sprintf("max_bytes:%d", bytes)).Policies)
			return more
		}
		before := with(bytes).taken(t)
		notMore(t, "a greater size", before, with(bytes+rapid.IntRange(1, 9).Draw(t, "more")).taken(t))
		later := with(bytes)
		later.rules.Pulls.Since = s.rules.Pulls.Since.Add(time.Duration(rapid.IntRange(1, 30).Draw(t, "later")) * time.Hour)
		for name, by := range later.taken(t) {
			if by.Has(at) && !before[name].Has(at) && !slices.ContainsFunc(s.tags, func(one judge.Tag) bool { return one.Name == name && attached(one) }) {
				t.Fatalf("%s goes because pull statistics began later", name)
			}
		}
	})
}
