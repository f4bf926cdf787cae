import { createUploadActivities } from '../../activities/upload.ts';
import { outlineOf } from '../../api/console/outline.ts';
import { readCsv } from '../../api/files/csv.ts';
import { contactsIn, tableOf } from '../../api/files/table.ts';
import type { Database } from '../../db/connection/client.ts';
import { cutPart } from '../../db/uploads/parts.ts';
import { createUpload, startUpload } from '../../db/uploads/uploads.ts';
import type { RequestedType } from '../../db/words.ts';
import { type Organization, WORKER_RULES } from './organization.ts';
import { NO_TEMPORAL, quiet } from './runtime.ts';
import { ordinaryNpis } from './vendors.ts';

/**
 * Stores a file with these NPIs, each with a note, and starts its upload, without its workflow.
 * @returns the id of the upload
 */
export async function startedUpload(
  db: Database,
  { organizationId, keyId: apiKeyId }: Organization,
  npis: readonly string[],
  note = '',
  notifyEmail: string | null = null,
  requestedType: RequestedType = 'any',
): Promise<string> {
  const rows = npis.map((npi) => `${npi},${note}`);
  const file = {
    fileName: 'npis.csv',
    content: Buffer.from(`npi,note\n${rows.join('\n')}\n`),
  };
  const created = await createUpload(db, { organizationId, apiKeyId }, file);
  if (created.kind !== 'created') throw new Error(`the upload is ${created.kind}`);
  const { uploadId } = created;
  const table = tableOf(file.fileName, readCsv(file.fileName, file.content));
  const outline = outlineOf(contactsIn(table, 0));
  const { fileName } = file;
  const chosen = {
    npiColumn: 0,
    requestedType,
    fileName,
    notifyEmail,
    outline,
    npis,
  } as const;
  await startUpload(db, { organizationId, uploadId }, chosen);
  return uploadId;
}

/** Returns the activities of uploads as a worker without a mail server has them. */
export function uploadActivities(db: Database, rules = WORKER_RULES) {
  return createUploadActivities({
    db,
    rules,
    log: quiet,
    control: NO_TEMPORAL,
    mail: null,
  });
}

/** As `startedUpload`, with small parts of the same size. Together, they have at most 60 NPIs. */
export async function uploadInParts(
  db: Database,
  organization: Organization,
  { parts, size }: { readonly parts: number; readonly size: number },
): Promise<string> {
  const npis = ordinaryNpis('found', parts * size);
  const uploadId = await startedUpload(db, organization, npis);
  for (let position = 0; position < parts - 1; position += 1)
    await cutPart(db, { uploadId, position }, size);
  return uploadId;
}
