/**
 * Why an address got its verdict, as stored with it and shown to operators; never to clients.
 * - `mailbox_ok`: everything passed, and the vendor saw the mailbox answer recently
 * - `mailbox_missing`: the vendor says that mail to it bounces
 * - `no_evidence`, `stale_evidence`: nobody has seen the mailbox answer, or too long ago
 * - `syntax`, `no_suffix`: not an address that mail on the internet could reach
 * - `no_mx`, `null_mx`, `nxdomain`: the domain takes no mail
 * - `disposable`, `relay`, `role`, `direct`: an address, but not one of a person's own mailbox
 */
export type Reason =
  | 'mailbox_ok'
  | 'mailbox_missing'
  | 'no_evidence'
  | 'stale_evidence'
  | 'syntax'
  | 'no_suffix'
  | 'no_mx'
  | 'null_mx'
  | 'nxdomain'
  | 'disposable'
  | 'relay'
  | 'role'
  | 'direct';
