package autoprune_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"pgregory.net/rapid"

	"github.com/purser-registry/purser/internal/judge"
)

// bytes returns the size of a max_bytes policy.
func (r oracleRule) bytes() int64 {
	size := r.MaxBytes
	if size == nil {
		size = new(oracleSize)
		if err := json.Unmarshal(r.Value, size); err != nil {
			panic(err)
		}
	}
	return int64(*size)
}

// lastUse returns when the tag was last pushed or used.
func (t oracleTag) lastUse() time.Time {
	if t.used.After(t.pushed) {
		return t.used
	}
	return t.pushed
}

// usedLater reports whether tag t was used later than tag u.
func (t oracleTag) usedLater(u oracleTag) bool {
	return t.lastUse().After(u.lastUse()) || t.lastUse().Equal(u.lastUse()) && t.name > u.name
}

// oracleByBytes applies the max_bytes policies to the tags that no policy by age or last use
// selects. It returns the tags that they select.
func oracleByBytes(in oracleInput, rules []oracleRule, tags []oracleTag, fates map[string]oracleFate) map[string][]string {
	selected := map[string][]string{}
	for _, r := range rules {
		if r.Method != "max_bytes" || r.waits(in) || in.statistics.missing(in.now) {
			continue
		}
		var looked, counted []oracleTag
		for _, t := range tags {
			f := fates[t.name]
			if !r.looksAt(in, t) || t.exempt[r.index] || f.orphan && r.removesOrphans() {
				continue
			}
			looked = append(looked, t)
			switch {
			case len(f.selected) > 0 || f.exempt || f.unjudged || f.waits:
			case t.lastUse().Before(in.statistics.since), t.lastUse().After(in.now.Add(5 * time.Minute)):
				f.unplaced = true
				fates[t.name] = f
			default:
				counted = append(counted, t)
			}
		}
		// As long as what remains is too much, the least recently used tag goes.
		first := false
		var newest oracleTag // of those that go
		for oracleStored(in, counted) > r.bytes() {
			least := 0
			for i := range counted {
				if counted[least].usedLater(counted[i]) {
					least = i
				}
			}
			first, newest = true, counted[least]
			counted = slices.Delete(counted, least, least+1)
		}
		for _, t := range looked {
			if first && !t.usedLater(newest) {
				selected[t.name] = append(selected[t.name], "bytes "+strconv.Itoa(r.index))
			}
		}
	}
	return selected
}

// oracleStored returns how many bytes tags store.
func oracleStored(in oracleInput, tags []oracleTag) (sum int64) {
	manifests, blobs := map[string]bool{}, map[string]bool{}
	for _, t := range tags {
		manifests[t.manifest] = true
	}
	for again := true; again; {
		again = false
		add := func(digest string) {
			if _, there := in.manifests[digest]; there && !manifests[digest] {
				manifests[digest], again = true, true
			}
		}
		for digest, m := range in.manifests {
			if manifests[digest] {
				for _, child := range m.children {
					add(child)
				}
			}
			if manifests[m.subject] {
				add(digest)
			}
		}
		for _, t := range in.tags {
			if image, present := oracleImage(in, t); present && manifests[image] {
				add(t.manifest)
			}
		}
	}
	for digest := range manifests {
		m := in.manifests[digest]
		sum += m.bytes
		for name, size := range m.blobs {
			if !blobs[name] {
				sum += size
			}
			blobs[name] = true
		}
	}
	return sum
}

// drawOracleContents draws what manifests store. Each configuration is a blob of its own.
func drawOracleContents(t *rapid.T, s *oracleScene) {
	for i := 1; i <= oracleManifests; i++ {
		digest := oracleDigest(i)
		m := s.manifests[digest]
		m.bytes, m.blobs = s.own[digest], map[string]int64{}
		if m.configuration != nil {
			name := s.configurationName(digest)
			m.blobs[name] = int64(len(m.configuration.content(name)))
		}
		if m.mediaType == oracleIndexType { // blobs of an index would count for its size
			s.manifests[digest] = m
			continue
		}
		for _, layer := range rapid.SliceOfNDistinct(rapid.IntRange(1, 9), 0, 3, rapid.ID[int]).Draw(t, "layers") {
			m.blobs[oracleLayerName(layer)] = int64(layer) * 700
		}
		s.manifests[digest] = m
	}
}

func oracleLayerName(layer int) string { return fmt.Sprint("layer ", layer) }

// configurationName makes the configuration of a manifest different from all others.
func (s oracleScene) configurationName(digest string) string {
	return fmt.Sprint("configuration ", s.repository, digest)
}

// withContent lets the repository tell what the scene's manifests store.
func (s oracleScene) withContent(r judge.Repository) judge.Repository {
	r.Kept = func(manifests []int64) (list []judge.Reference, _ error) {
		for _, one := range s.references() {
			if slices.Contains(manifests, one.Parent) {
				list = append(list, one)
			}
		}
		for digest, m := range s.manifests {
			if subject := oracleNumbers[m.subject]; slices.Contains(manifests, subject) {
				list = append(list, judge.Reference{Parent: subject, Child: oracleNumbers[digest]})
			}
		}
		return list, nil
	}
	r.Contents = func(manifests []int64) (list []judge.Content, _ error) {
		for digest, m := range s.manifests {
			if !slices.Contains(manifests, oracleNumbers[digest]) {
				continue
			}
			c := judge.Content{Manifest: oracleNumbers[digest], Size: m.bytes}
			for name := range m.blobs {
				c.Blobs = append(c.Blobs, name)
			}
			list = append(list, c)
		}
		return list, nil
	}
	r.BlobSizes = func(blobs []string) (map[string]int64, error) {
		sizes := map[string]int64{}
		for _, m := range s.manifests {
			for name, size := range m.blobs {
				if slices.Contains(blobs, name) {
					sizes[name] = size
				}
			}
		}
		return sizes, nil
	}
	return r
}
