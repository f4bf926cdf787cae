import type { MailboxReason } from './verifiers/verifier.ts';

/**
 * Why an address got its verdict, as stored with it and shown to operators; never to clients.
 * - `mailbox_ok`: everything passed, and the vendor or a verifier saw the mailbox answer recently
 * - `two_sources`: the domain takes mail for anything, but two sources gave the address
 * - `local_checks`: our own checks passed, and no more was asked for
 * - `mailbox_missing`, `mailbox_full`, `mailbox_disabled`: mail to it bounces
 * - `no_evidence`, `stale_evidence`: nobody has seen the mailbox answer, or too long ago
 * - `not_verified`: only the vendor has, and a verifier is required
 * - `verifier_unavailable`: a verifier was needed, and none will serve us until an operator acts
 * - `greylisted`, `blocked`, `timeout`, `inconclusive`: a verifier looked and could not tell
 * - `syntax`, `no_suffix`: not an address that mail on the internet could reach
 * - `no_mx`, `null_mx`, `nxdomain`: the domain takes no mail
 * - `disposable`, `relay`, `role`, `direct`: an address, but not one of a person's own mailbox
 */
export type Reason =
  | MailboxReason
  | 'two_sources'
  | 'local_checks'
  | 'no_evidence'
  | 'stale_evidence'
  | 'not_verified'
  | 'verifier_unavailable'
  | 'greylisted'
  | 'syntax'
  | 'no_suffix'
  | 'null_mx'
  | 'nxdomain'
  | 'relay'
  | 'direct';
