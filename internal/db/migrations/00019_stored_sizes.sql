-- manifests.total_size was the sum of the sizes that a manifest declares, which may be wrong:
-- with layers of 2^63-1 bytes it was negative. From now on it is the sum of the stored sizes.
-- A background worker corrects older rows, a bounded number at a time, since a registry may
-- have hundreds of millions of manifests. The only row of manifest_size_corrections says how
-- far the worker has come. The worker goes through all manifests twice: the second pass
-- corrects manifests that processes of the first release stored during the upgrade.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

CREATE TABLE manifest_size_corrections (
    one_row     boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    pass        integer NOT NULL DEFAULT 1,
    manifest_id bigint NOT NULL DEFAULT 0,
    compared    bigint NOT NULL DEFAULT 0,
    corrected   bigint NOT NULL DEFAULT 0,
    due_at      timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
);

COMMENT ON TABLE manifest_size_corrections IS 'how far the background correction of manifests.total_size has come';
COMMENT ON COLUMN manifest_size_corrections.manifest_id IS 'the last manifest of this pass that was compared';
COMMENT ON COLUMN manifest_size_corrections.compared IS 'manifests, of all passes';
COMMENT ON COLUMN manifest_size_corrections.corrected IS 'manifests whose total_size was wrong, of all passes';
COMMENT ON COLUMN manifest_size_corrections.due_at IS 'the pass does not go on before';
COMMENT ON COLUMN manifests.total_size IS 'bytes that are stored: of the payload, the configuration and the layers; of an index, of its manifests without theirs';
COMMENT ON COLUMN layers.size IS 'bytes, as the manifest declares them; blobs.size is what is stored';

INSERT INTO manifest_size_corrections (finished_at)
SELECT CASE WHEN NOT EXISTS (SELECT FROM manifests) THEN now() END;
