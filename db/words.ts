// The words of spec.md, once, as types: every layer above speaks them.

export const EMAIL_TYPES = ['professional', 'personal'] as const;
export type EmailType = (typeof EMAIL_TYPES)[number];

export const WANTED_TYPES = ['any', 'professional', 'personal'] as const;
export type WantedType = (typeof WANTED_TYPES)[number];

export const WEBHOOK_MODES = ['real-time', 'batch'] as const;
export type WebhookMode = (typeof WEBHOOK_MODES)[number];

export type SubmittedAs = 'single' | 'bulk';
export type BatchStatus = 'in-progress' | 'completed';
export type FinalStatus = 'completed' | 'not_found' | 'failed';
export type RequestStatus = 'accepted' | 'in-progress' | FinalStatus;
export type DeliveryState = 'pending' | 'delivered' | 'failed' | 'none';
export type LedgerKind = 'grant' | 'adjustment' | 'hold' | 'charge' | 'release';
export type StoredVerdict = 'valid' | 'catch_all' | 'risky' | 'invalid' | 'unknown';
export type VendorAttemptState =
  | 'submitting'
  | 'pending'
  | 'found'
  | 'miss'
  | 'skip'
  | 'blocked'
  | 'retry'
  | 'fatal'
  | 'lost';
