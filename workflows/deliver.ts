import type { DeliverInput, DeliveryResult } from './messages.ts';
import { delivering } from './options.ts';

/** A delivery that is sent again, after its batch was over or before: the whole schedule anew. */
export async function deliverAgain({ deliveryId, organizationId }: DeliverInput): Promise<DeliveryResult> {
  return await delivering('webhook, sent again', organizationId).deliverWebhook({ deliveryId });
}
