package autoprune_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/protection"
	"github.com/purser-registry/purser/internal/testscale"
	"github.com/purser-registry/purser/internal/worker"
)

// witness is SQL that creates triggers. In each transaction that deletes a tag by policies, the
// triggers check that these policies exist, that they select the tag as it was before the
// deletion, that no rule protects it, and that no policy's keep rule keeps it. The triggers
// also record each deletion, so that the test can compare the deletions with the audit entries.
// They write violations to the table `wrong`.
const witness = `
	CREATE TABLE wrong (what text);
	CREATE TABLE deletions (repository_id bigint, tag text, created_at timestamptz, updated_at timestamptz, by text);
	CREATE TABLE pushes (repository_id bigint, tag text, pushed timestamptz, manifest_id bigint);
	CREATE TABLE by_bytes (tag text); -- deletions by max_bytes policies

	CREATE FUNCTION witness_tags () RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF TG_OP = 'DELETE' THEN
			INSERT INTO deletions VALUES (OLD.repository_id, OLD.name, OLD.created_at, OLD.updated_at, current_setting('application_name'));
		ELSE
			INSERT INTO pushes VALUES (NEW.repository_id, NEW.name, COALESCE(NEW.updated_at, NEW.created_at), NEW.manifest_id);
		END IF;
		RETURN NULL;
	END;
	$$;
	CREATE TRIGGER witness AFTER INSERT OR UPDATE OR DELETE ON tags FOR EACH ROW EXECUTE FUNCTION witness_tags();

	CREATE FUNCTION witness_entries () RETURNS trigger LANGUAGE plpgsql AS $$
	DECLARE
		was timestamptz := COALESCE(NEW.detail ->> 'updated_at', NEW.detail ->> 'created_at')::timestamptz;
		namespace bigint := (SELECT top_level_namespace_id FROM repositories WHERE id = NEW.repository_id);
		id text;
		p jsonb;
	BEGIN
		IF namespace IS NULL THEN -- the repository is being deleted
			RETURN NULL;
		END IF;
		IF EXISTS (SELECT FROM tagprotectionrules r WHERE NEW.tag ~ r.pattern
			AND COALESCE(r.namespace_id, namespace) = namespace AND COALESCE(r.repository_id, NEW.repository_id) = NEW.repository_id) THEN
			INSERT INTO wrong VALUES (format('%s is protected and was deleted', NEW.tag));
		END IF;
		INSERT INTO wrong SELECT format('%s is kept by %s and was deleted', NEW.tag, k) FROM (
				SELECT policy::jsonb AS q FROM namespaceautoprunepolicy WHERE namespace_id = namespace
				UNION ALL
				SELECT policy::jsonb FROM repositoryautoprunepolicy WHERE repository_id = NEW.repository_id
				UNION ALL
				SELECT policy::jsonb FROM defaultautoprunepolicy
				WHERE NOT EXISTS (SELECT FROM namespaceautoprunepolicy WHERE namespace_id = namespace)
					AND NOT EXISTS (SELECT FROM autoprunewithoutdefaults WHERE namespace_id = namespace)) applying
			CROSS JOIN LATERAL jsonb_array_elements(q -> 'keep') k
			WHERE NEW.tag ~ COALESCE(q ->> 'tagPattern', '') AND (NEW.tag ~ (k ->> 'tagPattern') OR (
				SELECT count(DISTINCT tag) FROM pushes u WHERE u.repository_id = NEW.repository_id AND u.tag <> NEW.tag
					AND u.pushed >= was AND u.tag ~ COALESCE(q ->> 'tagPattern', '')) < (k ->> 'newest')::bigint);
		FOR id IN SELECT jsonb_array_elements_text(NEW.detail -> 'policies') LOOP
			p := (
				SELECT policy::jsonb FROM namespaceautoprunepolicy WHERE uuid = id AND namespace_id = namespace
				UNION ALL
				SELECT policy::jsonb FROM repositoryautoprunepolicy WHERE uuid = id AND repository_id = NEW.repository_id
				UNION ALL
				SELECT policy::jsonb FROM defaultautoprunepolicy WHERE uuid = id
					AND NOT EXISTS (SELECT FROM namespaceautoprunepolicy WHERE namespace_id = namespace)
					AND NOT EXISTS (SELECT FROM autoprunewithoutdefaults WHERE namespace_id = namespace));
			IF p IS NULL THEN -- the policies of a repository go with it, by now perhaps
				INSERT INTO wrong SELECT format('%s was deleted by a policy that did not apply any more', NEW.tag)
				WHERE EXISTS (SELECT FROM repositories WHERE id = NEW.repository_id);
			ELSIF p ? 'olderThan' AND was >= clock_timestamp() - (p ->> 'olderThan')::interval THEN
				INSERT INTO wrong VALUES (format('%s was pushed at %s and deleted by %s', NEW.tag, was, p));
			ELSIF p ? 'numTags' AND (
				SELECT count(DISTINCT tag) FROM pushes u WHERE u.repository_id = NEW.repository_id AND u.tag <> NEW.tag
					AND u.pushed >= was) < (p ->> 'numTags')::bigint THEN
				INSERT INTO wrong VALUES (format('%s was among the newest of %s', NEW.tag, p));
			ELSIF p ? 'maxBytes' AND ( -- a manifest has 2 bytes, and is the whole image
				SELECT 2 * count(DISTINCT manifest_id) FROM pushes u WHERE u.repository_id = NEW.repository_id AND u.pushed >= was
					AND u.tag ~ COALESCE(p ->> 'tagPattern', '')) <= (p ->> 'maxBytes')::bigint THEN
				INSERT INTO wrong VALUES (format('%s and what was used since fit into %s', NEW.tag, p));
			ELSIF p ? 'tagPattern' AND NEW.tag !~ (p ->> 'tagPattern') THEN
				INSERT INTO wrong VALUES (format('%s does not match %s', NEW.tag, p));
			END IF;
		END LOOP;
		INSERT INTO by_bytes SELECT NEW.tag WHERE EXISTS (
			SELECT FROM namespaceautoprunepolicy WHERE uuid = NEW.detail -> 'policies' ->> 0 AND policy::jsonb ? 'maxBytes'
			UNION ALL
			SELECT FROM repositoryautoprunepolicy WHERE uuid = NEW.detail -> 'policies' ->> 0 AND policy::jsonb ? 'maxBytes'
			UNION ALL
			SELECT FROM defaultautoprunepolicy WHERE uuid = NEW.detail -> 'policies' ->> 0 AND policy::jsonb ? 'maxBytes');
		IF jsonb_array_length(NEW.detail -> 'policies') = 0 THEN
			INSERT INTO wrong VALUES (format('%s was deleted by no policy', NEW.tag));
		END IF;
		RETURN NULL;
	END;
	$$;
	CREATE TRIGGER witness AFTER INSERT ON auditlog FOR EACH ROW WHEN (NEW.kind = 'autoprune_tag_delete')
		EXECUTE FUNCTION witness_entries();`

// storm is the state of everything that runs at once.
type storm struct {
	*registry
	pruners []*autoprune.Pruner
	done    [6]atomic.Int64 // successful acts, by kind
	// late says that the time is over and that some kind of act hasn't happened yet. The machine is
	// busy then, so clients leave workers some time, and give them what happens seldom.
	late atomic.Bool
}

var (
	stormNamespaces = []string{"n0", "n1", "n2"} // n0 is never deleted
	stormPolicies   = []string{
		`{"method": "number_of_tags", "numTags": 1}`,
		`{"method": "number_of_tags", "numTags": 4}`,
		`{"method": "number_of_tags", "numTags": 2, "tagPattern": "a.*"}`,
		`{"method": "creation_date", "olderThan": "1h"}`,
		`{"method": "creation_date", "olderThan": "4h"}`,
		`{"method": "creation_date", "olderThan": "2h", "tagPattern": "b.*"}`,
		`{"method": "creation_date", "olderThan": "1h", "keep": [{"tagPattern": "^a[0-3]"}, {"newest": 1}]}`,
		`{"method": "number_of_tags", "numTags": 2, "tagPattern": "b.*", "keep": [{"newest": 4}]}`,
		`{"method": "max_bytes", "maxBytes": "2"}`,
		`{"method": "max_bytes", "maxBytes": "4", "tagPattern": "^[ab]"}`,
		`{"method": "max_bytes", "maxBytes": "6", "keep": [{"newest": 2}]}`,
	}
)

// TestStorm: many clients and workers act at once. A worker may delete a tag only if the
// policies and protection rules of that moment allow it. Each deletion must have exactly
// one audit entry. At the end exactly those tags must be left that the policies and rules
// keep.
func TestStorm(t *testing.T) {
	t.Parallel()
	s := &storm{registry: setup(t)}
	s.Exec(witness)
	s.Must(s.Protect(protection.Scope{}, "keep.*"))
	for range 4 {
		_, p := s.replica(func(o *autoprune.Options) {
			o.Lease, o.Turn, o.Batch, o.Page = 40*time.Millisecond, 30*time.Millisecond, 3, 7
			o.Pulls = func(context.Context) (judge.PullRecord, error) { // some workers are slow
				if rand.IntN(4) == 0 {
					time.Sleep(time.Duration(rand.IntN(90)) * time.Millisecond)
				}
				return longCounted, nil
			}
			o.Used = unpulled
		})
		s.pruners = append(s.pruners, p)
	}
	for _, name := range stormNamespaces {
		for _, repository := range []string{"/a", "/b"} {
			s.pushOld(t.Context(), name+repository, "keep", 100)
		}
	}
	s.blow(testscale.Pick(2*time.Second, time.Minute))
	s.settle()
	s.verify()
}

// longCounted and unpulled are the statistics of a registry in which nothing was ever pulled.
var longCounted = judge.PullRecord{Since: time.Unix(0, 0)}

func unpulled(context.Context, int64, []*judge.Tag) error { return nil }

// blow lets all clients and workers run for a while, and on a slow machine for longer, until each
// kind of act has happened once.
func (s *storm) blow(d time.Duration) {
	ctx, cancel := context.WithCancel(s.T.Context())
	defer cancel()
	var all sync.WaitGroup
	for _, p := range s.pruners {
		all.Go(func() {
			for ctx.Err() == nil {
				// Some slices are broken off. If all were, a worker on a busy machine would hardly
				// end one, since it needs a new connection after each that is broken off.
				limit := time.Minute
				if rand.IntN(3) == 0 {
					limit = time.Duration(1+rand.IntN(300)) * time.Millisecond
				}
				slice, end := context.WithTimeout(context.Background(), limit)
				if _, err := p.Work(slice); err != nil && slice.Err() == nil {
					s.T.Errorf("a worker: %v", err)
				}
				end()
			}
		})
	}
	for range 5 {
		all.Go(func() {
			for ctx.Err() == nil {
				s.act(context.WithoutCancel(ctx))
				if s.late.Load() {
					_ = worker.Sleep(ctx, 20*time.Millisecond)
				}
			}
		})
	}
	most := time.Now().Add(d + 2*time.Minute)
	for worker.Sleep(ctx, d) == nil && len(s.missing()) > 0 && time.Now().Before(most) {
		d = 100 * time.Millisecond
		s.late.Store(true)
	}
	cancel()
	all.Wait()
}

func pick[T any](list []T) T { return list[rand.IntN(len(list))] }

// act performs a random action as a client. The registry may refuse it, but must not fail
// with an internal error.
func (s *storm) act(ctx context.Context) {
	namespace := pick(stormNamespaces)
	path := namespace + pick([]string{"/a", "/b"})
	tag := fmt.Sprintf("%s%d", pick([]string{"a", "b", "c"}), rand.IntN(8))
	target := pick([]policies.Target{{}, {Namespace: namespace}, {Namespace: namespace}, {Repository: path}})
	var err error
	kind := 0
	switch n := rand.IntN(100); {
	case n < 45:
		s.pushOld(ctx, path, tag, rand.IntN(6))
	case n < 60:
		err = s.Catalog.PointTag(ctx, path, tag, autoprunetest.DigestOf(fmt.Sprintf("m%d", rand.IntN(5))))
	case n < 68:
		kind, err = 1, s.Catalog.DeleteTag(ctx, path, tag)
	case n < 80:
		kind, err = 2, s.changePolicy(ctx, target)
	case n < 87:
		kind, err = 3, s.changeProtection(ctx, namespace, path)
	case n < 95:
		kind, err = 4, s.undo(ctx)
	case n < 97:
		kind = 5
		s.Exec("DELETE FROM repositories WHERE path = $1 AND path NOT LIKE 'n0/%'", path)
	case n < 98:
		s.Exec("DELETE FROM top_level_namespaces WHERE name = $1 AND name <> 'n0'", namespace)
	default:
		err = s.pruners[0].RunNow(ctx, namespace)
	}
	if _, answer := errors.AsType[*oci.Error](err); err != nil && !answer {
		s.T.Errorf("a client was told: %v", err)
	}
	if err == nil {
		s.done[kind].Add(1)
	}
}

// pushOld creates or moves a tag, with its manifest, as if a client had pushed them the
// given number of hours ago.
func (s *storm) pushOld(ctx context.Context, path, tag string, hours int) {
	err := s.DB.Tx(ctx, func(tx pgx.Tx) error {
		for _, sql := range []string{
			"INSERT INTO top_level_namespaces (name) VALUES (split_part($1, '/', 1)) ON CONFLICT DO NOTHING",
			`INSERT INTO repositories (top_level_namespace_id, path)
				SELECT id, $1 FROM top_level_namespaces WHERE name = split_part($1, '/', 1) FOR KEY SHARE ON CONFLICT DO NOTHING`,
		} {
			if _, err := tx.Exec(ctx, sql, path); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = s.DB.Tx(ctx, func(tx pgx.Tx) error {
			var namespace, repository, manifest int64
			err := tx.QueryRow(ctx, `SELECT n.id, r.id FROM repositories r JOIN top_level_namespaces n ON n.id = r.top_level_namespace_id
				WHERE path = $1 FOR KEY SHARE`, path).Scan(&namespace, &repository)
			if errors.Is(err, pgx.ErrNoRows) {
				return nil
			}
			if err != nil {
				return err
			}
			name := fmt.Sprintf("m%d", rand.IntN(5))
			err = tx.QueryRow(ctx, `INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, payload, total_size)
				VALUES ($1, $2, $3, 'application/vnd.oci.image.manifest.v1+json', '{}', 2)
				ON CONFLICT (top_level_namespace_id, repository_id, digest) DO UPDATE SET total_size = 2 RETURNING id`,
				namespace, repository, autoprunetest.DigestOf(name).Bytes()).Scan(&manifest)
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, `INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at)
				VALUES ($1, $2, $3, $4, now() - make_interval(hours => $5))
				ON CONFLICT (repository_id, top_level_namespace_id, name) DO UPDATE
				SET manifest_id = EXCLUDED.manifest_id, updated_at = EXCLUDED.created_at WHERE NOT tags.name LIKE 'keep%'`,
				namespace, repository, tag, manifest, hours)
			return err
		})
	}
	if err != nil {
		s.T.Errorf("pushing %s:%s: %v", path, tag, err)
	}
}

func (s *storm) changePolicy(ctx context.Context, target policies.Target) error {
	p := pick(s.pruners)
	if target.Namespace != "" && rand.IntN(6) == 0 {
		return p.Policies.UseDefaults(ctx, target.Namespace, rand.IntN(2) == 0)
	}
	list, err := p.Policies.List(ctx, target)
	if err != nil {
		return err
	}
	policies := stormPolicies
	if s.late.Load() && rand.IntN(2) == 0 {
		policies = slices.DeleteFunc(slices.Clone(policies), func(text string) bool { return !strings.Contains(text, "max_bytes") })
	}
	policy, err := policy.Parse([]byte(pick(policies)))
	if err != nil {
		return err
	}
	switch n := rand.IntN(3); {
	case n == 0 && len(list) < 2 || len(list) == 0:
		_, err = p.Policies.Create(ctx, target, policy)
	case n == 1:
		err = p.Policies.Update(ctx, target, pick(list).ID, policy)
	default:
		err = p.Policies.Delete(ctx, target, pick(list).ID)
	}
	return err
}

func (s *storm) changeProtection(ctx context.Context, namespace, path string) error {
	scope := pick([]protection.Scope{{}, {Namespace: namespace}, {Repository: path}})
	rules, _, err := protection.New(protection.Options{DB: s.Catalog.DB()}).List(ctx, scope, protection.Place{}, 1000)
	if err != nil {
		return err
	}
	for _, r := range rules {
		if r.Pattern.String() != "keep.*" && rand.IntN(3) > 0 {
			return protection.New(protection.Options{DB: s.Catalog.DB()}).Delete(ctx, scope, r.ID)
		}
	}
	pattern, err := oci.ParseTagPattern(pick([]string{"a[0-3]", "b.*", "c1|c2|c3"}))
	if err != nil {
		return err
	}
	_, err = protection.New(protection.Options{DB: s.Catalog.DB()}).Create(ctx, scope, pattern)
	return err
}

func (s *storm) undo(ctx context.Context) error {
	p := pick(s.pruners)
	runs, _, err := p.Runs(ctx, "", "", 20)
	if err != nil || len(runs) == 0 {
		return err
	}
	_, err = p.Undo(ctx, pick(runs).ID, "", time.Minute)
	return err
}

// settle lets one worker prune until nothing is left to do.
func (s *storm) settle() {
	s.T.Helper()
	s.Exec("UPDATE autoprunetaskstatus SET leased_until = clock_timestamp() - interval '1s' WHERE lease IS NOT NULL")
	statistics := func(o *autoprune.Options) {
		o.Pulls, o.Used = func(context.Context) (judge.PullRecord, error) { return longCounted, nil }, unpulled
	}
	_, p := s.replica(statistics) // a new pruner keeps house when it begins
	for quiet, before := 0, int64(-1); quiet < 20; quiet++ {
		_, err := p.Work(s.T.Context())
		s.Must(err)
		if now := autoprunetest.Value[int64](s.Registry, "SELECT sum(deleted)::bigint FROM autopruneruns"); now != before ||
			autoprunetest.Value[bool](s.Registry, "SELECT EXISTS (SELECT FROM autoprunetaskstatus WHERE run IS NOT NULL OR last_ran_ms IS NULL)") {
			before, quiet = now, 0
		}
	}
	_, p = s.replica(statistics) // once more, for runs whose task was just deleted
	_, err := p.Work(s.T.Context())
	s.Must(err)
}

func (s *storm) verify() {
	s.T.Helper()
	s.consistent()
	for _, wrong := range autoprunetest.Values[string](s.Registry, "SELECT DISTINCT what FROM wrong LIMIT 20") {
		s.T.Error(wrong)
	}
	for _, failure := range autoprunetest.Values[string](s.Registry, `SELECT DISTINCT error FROM autopruneruns WHERE state = 'failure'
		UNION SELECT error FROM autopruneruns_repositories WHERE error IS NOT NULL LIMIT 20`) {
		s.T.Errorf("a run failed: %s", failure)
	}
	for what, sql := range map[string]string{
		"deletions by workers that the audit log doesn't tell, or entries without a deletion": `
			SELECT count(*) FROM (SELECT repository_id, tag, created_at, updated_at, count(*) AS n FROM deletions
				WHERE by = 'pruner' GROUP BY 1, 2, 3, 4) d
			FULL JOIN (SELECT repository_id, tag, (detail ->> 'created_at')::timestamptz AS created_at,
				(detail ->> 'updated_at')::timestamptz AS updated_at, count(*) AS n FROM auditlog
				WHERE kind = 'autoprune_tag_delete' GROUP BY 1, 2, 3, 4) e
			ON (d.repository_id, d.tag, d.created_at) = (e.repository_id, e.tag, e.created_at) AND d.updated_at IS NOT DISTINCT FROM e.updated_at
			WHERE d.n IS DISTINCT FROM e.n`,
		"runs that run for ever": "SELECT count(*) FROM autopruneruns WHERE state = 'running'",
		"runs that don't count what was restored": `SELECT count(*) FROM autopruneruns r
			WHERE restored <> (SELECT count(*) FROM auditlog WHERE run = r.id AND kind = 'revert_tag')`,
		"tasks without a policy, or policies without a task": `
			SELECT count(*) FROM top_level_namespaces n
			WHERE EXISTS (SELECT FROM autoprunetaskstatus WHERE namespace_id = n.id) <> (
				EXISTS (SELECT FROM namespaceautoprunepolicy WHERE namespace_id = n.id)
				OR EXISTS (SELECT FROM repositoryautoprunepolicy WHERE namespace_id = n.id)
				OR EXISTS (SELECT FROM defaultautoprunepolicy)
					AND NOT EXISTS (SELECT FROM autoprunewithoutdefaults WHERE namespace_id = n.id))`,
		"tags that were always protected and are gone": `
			SELECT count(*) FROM deletions d JOIN repositories r ON r.id = d.repository_id WHERE tag LIKE 'keep%'`,
	} {
		if n := autoprunetest.Value[int](s.Registry, sql); n != 0 {
			s.T.Errorf("%s: %d", what, n)
		}
	}
	s.verifyRest()
	for _, what := range s.missing() {
		s.T.Errorf("there were no %s", what)
	}
	s.T.Logf("tags deleted by policies: %d, restored: %d, runs: %d, of them stopped: %d; acts: %d pushes, %d deletions, %d of policies, %d of rules, %d undos",
		autoprunetest.Value[int](s.Registry, "SELECT sum(deleted) FROM autopruneruns"), autoprunetest.Value[int](s.Registry, "SELECT sum(restored) FROM autopruneruns"),
		autoprunetest.Value[int](s.Registry, "SELECT sum(times) FROM autopruneruns"), autoprunetest.Value[int](s.Registry, "SELECT count(*) FROM autopruneruns WHERE state = 'stopped'"),
		s.done[0].Load(), s.done[1].Load(), s.done[2].Load(), s.done[3].Load(), s.done[4].Load())
}

// missing returns the kinds of acts that haven't happened in this storm.
func (s *storm) missing() (list []string) {
	for kind, what := range []string{"pushes", "deletions", "changes of policies", "changes of protection", "undos", "deletions of repositories"} {
		if s.done[kind].Load() == 0 {
			list = append(list, what)
		}
	}
	if autoprunetest.Value[int](s.Registry, "SELECT count(*) FROM by_bytes") == 0 {
		list = append(list, "deletions by max_bytes policies")
	}
	return list
}

// rest is a tag that is left when all clients and workers of TestStorm have ended, with the
// policies from which the tag is exempt.
type rest struct {
	Repository int64
	Path, Tag  string
	Pushed     time.Time
	Exempt     []string
}

// verifyRest checks, in a slow and simple way, that no tag is left that the policies should
// have deleted.
func (s *storm) verifyRest() {
	s.T.Helper()
	rows, err := s.DB.Pool.Query(s.T.Context(), `
		SELECT r.id, r.path, t.name, COALESCE(t.updated_at, t.created_at) AS pushed, ARRAY(
			SELECT e.policy FROM autopruneexemptions e
			JOIN (SELECT uuid, rule_version FROM namespaceautoprunepolicy UNION ALL SELECT uuid, rule_version FROM repositoryautoprunepolicy
				UNION ALL SELECT uuid, rule_version FROM defaultautoprunepolicy) p ON p.uuid = e.policy AND p.rule_version <= e.version
			WHERE e.repository_id = r.id AND e.tag_id = t.id)
		FROM tags t JOIN live_repositories r ON r.id = t.repository_id ORDER BY r.id, pushed DESC, t.name`)
	s.Must(err)
	tags, err := pgx.CollectRows(rows, pgx.RowToStructByPos[rest])
	s.Must(err)
	now := autoprunetest.Value[time.Time](s.Registry, "SELECT now()")
	counts, newer := make(map[string]int64), make(map[string]int64) // by repository and policy
	for _, one := range tags {
		namespace, _, _ := strings.Cut(one.Path, "/")
		target, err := s.Catalog.FindRepository(s.T.Context(), one.Path)
		s.Must(err)
		rules, err := protection.In(s.T.Context(), s.Catalog.DB().Pool, target.NamespaceID)
		s.Must(err)
		if slices.ContainsFunc(rules, func(r protection.Rule) bool {
			return r.HoldsIn(target.NamespaceID, target.ID) && r.Pattern.Match(one.Tag)
		}) {
			continue
		}
		policies := s.policies(namespace, one.Path)
		old := func(p plainPolicy) bool { return p.Age > 0 && one.Pushed.Before(now.Add(-p.Age)) && p.selects(one.Tag) }
		first := slices.ContainsFunc(policies, old) // restored by an undo, so number policies don't count it
		kept := false
		for _, p := range policies {
			kept = kept || p.keeps(one.Tag, newer[one.Path+p.ID])
			if p.selects(one.Tag) && !slices.Contains(one.Exempt, p.ID) {
				newer[one.Path+p.ID]++
			}
		}
		for _, p := range policies {
			if slices.Contains(one.Exempt, p.ID) || !p.selects(one.Tag) {
				continue
			}
			key := one.Path + p.ID
			if !first {
				counts[key]++
			}
			if kept {
				continue
			}
			if p.Number > 0 && counts[key] > p.Number {
				s.T.Errorf("%s:%s is left, and isn't among the newest %d", one.Path, one.Tag, p.Number)
			}
			if p.Age > 0 && one.Pushed.Before(now.Add(-p.Age)) {
				s.T.Errorf("%s:%s is left, and was pushed at %s, more than %s ago", one.Path, one.Tag, one.Pushed, p.Age)
			}
		}
	}
}

type plainPolicy struct {
	ID, Pattern string
	Number      int64
	Age         time.Duration
	Keep        []policy.KeepRule
}

// keeps returns whether a keep rule of the policy keeps a tag. `newer` is how many newer
// tags the policy considers.
func (p plainPolicy) keeps(tag string, newer int64) bool {
	return p.selects(tag) && slices.ContainsFunc(p.Keep, func(k policy.KeepRule) bool {
		return !k.TagPattern.IsZero() && regexp.MustCompile(k.TagPattern.String()).MatchString(tag) || newer < int64(k.Newest)
	})
}

func (p plainPolicy) selects(tag string) bool {
	return p.Pattern == "" || regexp.MustCompile(p.Pattern).MatchString(tag)
}

func (s *storm) policies(namespace, path string) []plainPolicy {
	s.T.Helper()
	rows, err := s.DB.Pool.Query(s.T.Context(), `
		SELECT p.uuid, COALESCE(policy::jsonb ->> 'tagPattern', ''), COALESCE((policy::jsonb ->> 'numTags')::bigint, 0),
			COALESCE((policy::jsonb ->> 'olderThan')::interval, '0'), COALESCE(policy::jsonb -> 'keep', '[]')
		FROM top_level_namespaces n CROSS JOIN LATERAL (
			SELECT uuid, policy FROM namespaceautoprunepolicy WHERE namespace_id = n.id
			UNION ALL
			SELECT p.uuid, policy FROM repositoryautoprunepolicy p JOIN repositories r ON r.id = p.repository_id WHERE r.path = $2
			UNION ALL
			SELECT uuid, policy FROM defaultautoprunepolicy
			WHERE NOT EXISTS (SELECT FROM namespaceautoprunepolicy WHERE namespace_id = n.id)
				AND NOT EXISTS (SELECT FROM autoprunewithoutdefaults WHERE namespace_id = n.id)) p
		WHERE n.name = $1`, namespace, path)
	s.Must(err)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[plainPolicy])
	s.Must(err)
	return list
}
