import examples from './examples.json' with { type: 'json' };
import { RATE, responseHeaders } from './headers.ts';
import { INVALID, json, link, parameter } from './operations.ts';
import { batchId, deliveryId, jsonSchema } from './schemas.ts';

// The delivery log: its operations in the OpenAPI document.

const BATCH_ID = {
  name: 'batch_id',
  in: 'path',
  required: true,
  description: 'As a submit gave it.',
  schema: jsonSchema(batchId),
};
const DELIVERY_ID = {
  name: 'delivery_id',
  in: 'path',
  required: true,
  description: "`id` of a delivery of this batch: its attempts' `webhook-id`.",
  schema: jsonSchema(deliveryId),
};

export const deliveryOperations = {
  getDeliveries: {
    tags: ['Deliveries'],
    summary: 'Webhook deliveries of a submit, with every attempt',
    description:
      'In the order of the submit, page by page. A page holds the state as of its reading; deliveries are neither added nor moved later, so that following `next_cursor` shows each exactly once.',
    parameters: [BATCH_ID, parameter('limit'), parameter('cursor')],
    responses: {
      200: {
        description: 'One page. `next_cursor` leads to the next.',
        headers: responseHeaders(RATE),
        content: json('Deliveries', examples.deliveries),
        links: {
          next: link(
            'getDeliveries',
            { batch_id: '$request.path.batch_id', cursor: '$response.body#/next_cursor' },
            'The next page.',
          ),
          resend: link(
            'resendDelivery',
            { batch_id: '$request.path.batch_id', delivery_id: '$response.body#/deliveries/0/id' },
            'Send the first of them again.',
          ),
        },
      },
      ...INVALID,
    },
  },
  resendDelivery: {
    tags: ['Deliveries'],
    summary: 'Send a delivery again',
    description:
      'One that is decided, or that waits for its next attempt: with its old `webhook-id`, the result as it is then and the whole schedule of attempts. Asked twice, it is sent once: the second answer is 409 `delivery_pending`. Takes no body.',
    parameters: [BATCH_ID, DELIVERY_ID],
    responses: {
      202: {
        description: 'It will be sent: `pending` until it is decided anew.',
        headers: responseHeaders(RATE),
        content: json('Delivery', examples.resend),
      },
      ...INVALID,
    },
  },
};
