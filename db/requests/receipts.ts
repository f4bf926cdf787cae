import { type Database, run } from '../connection/client.ts';

/**
 * The evidence that an email is the person's, without vendors' names. The fields follow from today's
 * public data, except `sources` and `isPattern`, which follow from the evidence until the request
 * ended.
 */
export interface Receipt {
  /** The number of independent sources that named the email. */
  readonly sources: number;
  /** True if we wrote the email in the form of others at the employer's domain. */
  readonly isPattern: boolean;
  /** True if a check of the mailbox succeeded. */
  readonly isChecked: boolean;
  /** True if the mail server accepts every address, so that two sources had to name the email. */
  readonly isCatchAll: boolean;
  readonly hasSurname: boolean;
  readonly hasGivenName: boolean;
  /** True if NPPES lists the email for the NPI. */
  readonly isListed: boolean;
  /** True if the domain is that of an employer that the operator has entered. */
  readonly isEmployers: boolean;
  /** True if an organization with the same practice phone has addresses at the domain. */
  readonly isAtPhone: boolean;
}

/**
 * Reads the receipts of all emails in a batch, by request id, in one statement (`receipts_of` in
 * db/migrations). A batch of another organization has no receipts.
 */
export async function readReceipts(
  db: Database,
  organizationId: string,
  batchId: string,
): Promise<Map<string, Receipt>> {
  const rows = await run<Receipt & { readonly requestId: string }>(db)`
    select request_id as "requestId",
           sources,
           is_pattern as "isPattern",
           coalesce(reason = 'mailbox_ok', false) as "isChecked",
           coalesce(reason = 'two_sources', false) as "isCatchAll",
           has_surname as "hasSurname",
           has_given_name as "hasGivenName",
           is_listed as "isListed",
           is_employers as "isEmployers",
           is_at_phone as "isAtPhone"
      from receipts_of(${batchId}, ${organizationId})`;
  return new Map(rows.map(({ requestId, ...receipt }) => [requestId, receipt]));
}
