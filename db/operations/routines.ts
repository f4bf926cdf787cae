import { eq } from 'drizzle-orm';
import { type Database, query, transaction } from '../connection/client.ts';
import { clockTime } from '../schema/columns.ts';
import { routines } from '../schema.ts';
import { type ChangedBy, recordAudit } from './audit.ts';

/** Records that a backup has just ended, for `npe_backup_age_seconds`. */
export async function noteBackup(db: Database, by: ChangedBy): Promise<void> {
  await transaction(db, async (tx) => {
    await tx
      .update(routines)
      .set({ endedAt: clockTime })
      .where(eq(routines.kind, 'backup'));
    await recordAudit(tx, by, {
      action: 'backups.note',
      organizationId: null,
      subject: 'backup',
      details: {},
    });
  });
}

/** Records the result of a run of the doctor, for its metrics. */
export async function noteDoctor(db: Database, findings: number): Promise<void> {
  await query(db, (tx) =>
    tx
      .update(routines)
      .set({ endedAt: clockTime, findings })
      .where(eq(routines.kind, 'doctor')),
  );
}
