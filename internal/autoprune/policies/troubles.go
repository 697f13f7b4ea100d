package policies

import (
	"context"
	"fmt"

	"github.com/purser-registry/purser/internal/db"
)

// Troubles are policies of the whole registry that need somebody. Each number is of pairs of a policy
// and a namespace, and has the name of one of the namespaces.
type Troubles struct {
	Unconfirmed, Unreported, Unproved       int64
	UnconfirmedIn, UnreportedIn, UnprovedIn string
}

// maxTroubles is up to which number policies are counted that need somebody.
const maxTroubles = 1000

// FindTroubles looks for policies that rest until somebody confirms their warnings, or until reporters
// report that they require, and for policies by last use, also the registry's defaults, in namespaces
// where no reporter is live.
func FindTroubles(ctx context.Context, q db.Querier) (t Troubles, err error) {
	const rests = `SELECT count(*), COALESCE(min(name), '') FROM (
		SELECT n.name FROM autoprunerests r JOIN live_namespaces n ON n.id = r.namespace_id
		WHERE %s AND (EXISTS (SELECT FROM namespaceautoprunepolicy p WHERE p.uuid = r.policy AND p.version = r.version)
			OR EXISTS (SELECT FROM repositoryautoprunepolicy p WHERE p.uuid = r.policy AND p.version = r.version)
			OR EXISTS (SELECT FROM defaultautoprunepolicy p WHERE p.uuid = r.policy AND p.version = r.version))
		LIMIT $1) found`
	for _, look := range []struct {
		sql    string
		number *int64
		in     *string
	}{
		{fmt.Sprintf(rests, "r.warnings IS NOT NULL"), &t.Unconfirmed, &t.UnconfirmedIn},
		{fmt.Sprintf(rests, "cardinality(r.reporters) > 0"), &t.Unreported, &t.UnreportedIn},
		{unproved, &t.Unproved, &t.UnprovedIn},
	} {
		if err := q.QueryRow(ctx, look.sql, maxTroubles).Scan(look.number, look.in); err != nil {
			return t, fmt.Errorf("looking for policies that rest: %w", err)
		}
	}
	return t, nil
}

// unproved finds the policies by last use in namespaces where no reporter is live, as hold.WithoutLive
// says it. Without a default policy by last use it reads no namespaces. A live reporter of the whole
// registry ends the search before it begins, and those of a namespace are found by their index. Default
// policies apply where reach of package warnings finds them.
const unproved = `
	SELECT count(*), COALESCE(min(name), '') FROM (
		SELECT n.name FROM (
			SELECT p.namespace_id FROM (
				SELECT namespace_id, policy FROM namespaceautoprunepolicy
				UNION ALL SELECT namespace_id, policy FROM repositoryautoprunepolicy) p
			WHERE (p.policy LIKE '%"method":"last_pulled"%' OR p.policy LIKE '%"method":"max_bytes"%') AND p.policy NOT LIKE '%"mode":"off"%'
			UNION ALL
			SELECT n.id FROM defaultautoprunepolicy d CROSS JOIN live_namespaces n
			WHERE (d.policy LIKE '%"method":"last_pulled"%' OR d.policy LIKE '%"method":"max_bytes"%') AND d.policy NOT LIKE '%"mode":"off"%'
				AND NOT EXISTS (SELECT FROM autoprunewithoutdefaults w WHERE w.namespace_id = n.id)
				AND (d.setting OR NOT EXISTS (SELECT FROM namespaceautoprunepolicy o WHERE o.namespace_id = n.id))) p
		JOIN live_namespaces n ON n.id = p.namespace_id
		WHERE NOT EXISTS (
				SELECT FROM holdreporters
				WHERE namespace_id IS NULL AND expires_at > now() AND reported_at + lease / 2 > now() AND reported_at < now() + interval '1 minute')
			AND NOT EXISTS (
				SELECT FROM holdreporters h
				WHERE h.namespace_id = n.id AND h.expires_at > now() AND h.reported_at + h.lease / 2 > now()
					AND h.reported_at < now() + interval '1 minute')
		LIMIT $1) found`
