import type { Database } from '../../db/client.ts';
import { createUpload, startUpload } from '../../db/uploads/uploads.ts';
import type { Organization } from './organization.ts';

/**
 * Stores a file with these NPIs and starts its upload, without its workflow.
 * @returns the id of the upload
 */
export async function startedUpload(
  db: Database,
  { organizationId, keyId: apiKeyId }: Organization,
  npis: readonly string[],
): Promise<string> {
  const file = {
    fileName: 'npis.csv',
    content: Buffer.from(`npi\n${npis.join('\n')}\n`),
  };
  const uploadId = await createUpload(db, { organizationId, apiKeyId }, file);
  if (uploadId === null) throw new Error('too many uploads');
  const chosen = { npiColumn: 0, requestedType: 'any', npis } as const;
  await startUpload(db, { organizationId, uploadId }, chosen);
  return uploadId;
}
