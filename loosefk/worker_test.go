package loosefk

import (
	"testing"
)

const projects = `
	CREATE TABLE projects (id bigint PRIMARY KEY);
	CREATE TABLE pipelines (id bigserial PRIMARY KEY, project_id int);
	CREATE INDEX ON pipelines (project_id);
	CREATE TABLE requests (id bigserial PRIMARY KEY, project_id bigint);
	CREATE INDEX ON requests (project_id);
	CREATE TABLE packages (project_id bigint, name text, status smallint, kind text);
	CREATE INDEX ON packages (project_id, status);
	INSERT INTO projects SELECT generate_series(1, 4);
	INSERT INTO pipelines (project_id) SELECT g % 4 + 1 FROM generate_series(1, 4000) g;
	INSERT INTO requests (project_id) SELECT g % 4 + 1 FROM generate_series(1, 40) g;
	INSERT INTO packages SELECT g % 4 + 1, 'p' || g, CASE WHEN g % 3 = 0 THEN NULL ELSE 1 END, CASE WHEN g % 2 = 0 THEN 'npm' ELSE 'go' END
	FROM generate_series(1, 400) g`

const projectsDefinitions = `
pipelines:
  - table: projects
    column: project_id
    on_delete: async_delete
requests:
  - table: projects
    column: project_id
    on_delete: :async_nullify
packages:
  - table: projects
    column: project_id
    on_delete: update_column_to
    target_column: status
    target_value: 4
    conditions: [{column: kind, value: npm}]
`

func TestRunOnce(t *testing.T) {
	t.Parallel()
	pool := newPool(t, projects)
	w := newWorker(t, Options{Definitions: parse(t, projectsDefinitions)}, install(t, pool, "projects"))
	exec(t, pool, "DELETE FROM projects WHERE id IN (1, 3)")
	wantRows(t, pool, "SELECT fully_qualified_table_name || ' ' || primary_key_value || ' ' || status FROM loose_foreign_keys_deleted_records ORDER BY id",
		"public.projects 1 1", "public.projects 3 1")
	r := runOnce(t, w, "main")
	if r.Records != 2 || r.Processed != 2 || r.Deletes != 2000 || r.Updates != 20+200 || r.OverLimit != "" || r.Incremented != 0 {
		t.Errorf("the run says %+v", r)
	}
	wantRows(t, pool, "SELECT DISTINCT project_id FROM pipelines ORDER BY 1", 2, 4)
	wantRows(t, pool, "SELECT COALESCE(project_id, 0) || ':' || count(*) FROM requests GROUP BY project_id ORDER BY 1", "0:20", "2:10", "4:10")
	wantRows(t, pool, "SELECT project_id || ':' || kind || ':' || count(*) FROM packages WHERE status = 4 GROUP BY project_id, kind ORDER BY 1", "1:npm:100", "3:npm:100")
	wantRows(t, pool, "SELECT status FROM loose_foreign_keys_deleted_records", int16(2), int16(2))
	if r := runOnce(t, w, "main"); r.Records != 0 || r.Deletes != 0 {
		t.Errorf("a second run says %+v", r)
	}
}
